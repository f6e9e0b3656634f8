# SPDX-License-Identifier: Apache-2.0
"""A real etcd for a test or a benchmark, in a process of its own."""

import shutil
import socket
import subprocess
import threading

PATIENCE = 30  # Seconds.


def is_installed():
    """Returns whether this machine has etcd; tools/setup installs it."""
    return shutil.which("etcd") is not None


def free_ports(count):
    """Returns different ports of the loopback on which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class EtcdServer:
    """Listens on a free port and keeps its data in `folder`, until it is closed.

    With `tls`, options of etcd for it, clients are served by TLS only.
    """

    def __init__(self, folder, tls=()):
        scheme = "https" if tls else "http"
        self.address, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._command = [
            "etcd", "--data-dir", str(folder),
            "--listen-client-urls", f"{scheme}://{self.address}",
            "--advertise-client-urls", f"{scheme}://{self.address}",
            "--listen-peer-urls", f"http://{peer}",
            "--initial-advertise-peer-urls", f"http://{peer}",
            "--initial-cluster", f"default=http://{peer}", *tls,
        ]  # fmt: skip
        self.start()

    def start(self):
        """Starts it, also again after close(), with the data and the port that it had."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        too_late = threading.Timer(PATIENCE, self._process.kill)
        too_late.start()
        said = []
        for line in self._process.stderr:
            said.append(line)
            if "ready to serve client requests" in line:
                break
        else:
            self.close()
            raise RuntimeError(f"etcd does not start within {PATIENCE} s:\n{''.join(said[-5:])}")
        too_late.cancel()
        threading.Thread(target=self._drain, args=[self._process.stderr], daemon=True).start()

    @staticmethod
    def _drain(lines):
        """Reads what etcd says, so that it never waits for a reader."""
        for _ in lines:
            pass

    def close(self):
        """Ends it as kill -9 does."""
        self._process.kill()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
