# SPDX-License-Identifier: Apache-2.0
"""iperf3 over loopback, as a counterpart."""

import json
import socket
import subprocess
import sys


class Iperf:
    """A server, and a client each time it is asked."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self.server = subprocess.Popen(
            ["iperf3", "--server", "--port", self.port, "--bind", "127.0.0.1", "--forceflush"],
            stdout=subprocess.PIPE,
            text=True,
        )
        while "listening" not in self.server.stdout.readline():
            if self.server.poll() is not None:
                sys.exit("iperf3 --server has ended")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()

    def run(self, streams, mib):
        command = ["iperf3", "--client", "127.0.0.1", "--port", self.port, "--json"]
        done = json.loads(
            subprocess.run(
                [*command, "--parallel", str(streams), "--bytes", f"{mib}M"],
                capture_output=True,
                check=True,
            ).stdout
        )["end"]
        seconds, received = done["sum_sent"]["seconds"], done["sum_received"]["bytes"]
        used = done["cpu_utilization_percent"]
        cpu = (used["host_total"] + used["remote_total"]) / 100 * seconds
        return {"rate": received / seconds / 1e9, "cpu": cpu / (received / 1e9)}
