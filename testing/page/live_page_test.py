# SPDX-License-Identifier: Apache-2.0
"""The page of a job of 64 ranks that goes on, in a real browser, as its controller serves it."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import urllib.request

import pytest

from testing.page import browser

WAYBILL = os.path.join(os.environ.get("RUNFILES_DIR", "."), "waybill", "tools/waybill/waybill")
ENV = os.environ | {"WAYBILL_TOKEN": "a secret of the test"}
MARKUP = "<img src=x onerror=console.log(1)>"
GROUPS = ["eval", MARKUP, "rollout"]
TRAINERS, GROUP_WORKERS = 4, 20

pytestmark = pytest.mark.skipif(
    not browser.is_installed(), reason="no Chromium: tools/setup installs the package chromium"
)


class Job:
    def __init__(self, folder, processes):
        data = bytes(range(256)) * 64
        header = {"w": {"dtype": "BF16", "shape": [128, 64], "data_offsets": [0, len(data)]}}
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        self._processes = processes
        self.controller = self.start(
            "controller", "--listen", "127.0.0.1:0", "--job", "live",
            "--state", folder / "decisions", "--metrics", "127.0.0.1:0",
            *(f"--require={group}" for group in GROUPS),  # Publishes wait until they are whole.
        )  # fmt: skip
        self.address = self.controller.stdout.readline().split(" on ")[1].split(",")[0]
        metrics = self.controller.stdout.readline().split()
        self.url = next(word for word in metrics if word.startswith("http:")).rstrip(",")
        self.url = self.url.removesuffix("metrics")
        common = ["--job", "live", "--controller", self.address, "--checkpoint", folder]
        self.trainers = [
            self.start("trainer", *common, "--rank", str(t), "--world", str(TRAINERS), "--driven")
            for t in range(TRAINERS)
        ]
        self.workers = {
            (group, w): self.start("worker", *common, "--group", group, "--rank", str(w),
                                   "--world", str(GROUP_WORKERS))
            for group in GROUPS for w in range(GROUP_WORKERS)
        }  # fmt: skip
        for trainer in self.trainers:
            assert json.loads(trainer.stdout.readline())["event"] == "joined"

    def start(self, *arguments):
        process = subprocess.Popen(
            [WAYBILL, *arguments], env=ENV, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def begin_publish(self, version):
        for trainer in self.trainers:
            trainer.stdin.write(f"publish {version}\n")
            trainer.stdin.flush()

    def publish(self, version):
        self.begin_publish(version)
        for trainer in self.trainers:
            assert "error" not in json.loads(trainer.stdout.readline())


@pytest.fixture
def job(tmp_path):
    with contextlib.ExitStack() as ends:
        processes = []

        def end():
            for process in processes:
                process.kill()
            for process in processes:
                process.communicate()

        ends.callback(end)
        yield Job(tmp_path, processes)


@pytest.fixture
def chromium(tmp_path):
    with browser.Browser(tmp_path / "profile") as opened:
        yield opened


def text(element):
    return f"document.getElementById('{element}').innerText"


def test_a_job_of_64_ranks_is_followed_without_a_reload(chromium, job):
    job.publish(7)
    chromium.emulate(390, dark=True)
    chromium.open(job.url)
    assert chromium.evaluate("document.title") == "live: running job"
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
    rows = "document.querySelectorAll('#group-table tbody tr')"
    chromium.until(f"[...{rows}].every((r) => r.cells[1].innerText === '7')")
    assert chromium.evaluate(f"{rows}.length") == len(GROUPS)
    names = chromium.evaluate(f"[...{rows}].map((r) => r.cells[0].innerText)")
    assert sorted(names) == sorted(GROUPS)
    assert chromium.evaluate("document.images.length") == 0
    parts = "document.querySelectorAll('#group-table .parts')"
    assert chromium.evaluate(f"[...{parts}].every((p) => p.title.startsWith('wait '))")

    job.publish(8)
    chromium.until(f"[...{rows}].every((r) => r.cells[1].innerText === '8')")
    chromium.until(f"{text('figures')}.includes('64') || {text('figures')}.includes('4 to 60')")

    # The reader's choices outlive a refresh.
    chromium.evaluate("document.getElementById('find').focus()")
    chromium.type("worker 13 of group roll")
    found = "document.querySelectorAll('#rank-tables tbody tr')"
    assert chromium.evaluate(f"[...{found}].map((r) => r.cells[0].innerText)") == [
        "worker 13 of group rollout"
    ]
    assert chromium.evaluate(text("timeline-text")).startswith("worker 13 of group rollout: ")
    chromium.evaluate("document.getElementById('heat-canvas').focus()")
    chromium.press("ArrowRight")
    job.publish(9)
    chromium.until(f"[...{rows}].every((r) => r.cells[1].innerText === '9')")
    assert chromium.evaluate("document.activeElement.id") == "heat-canvas"
    assert chromium.evaluate(f"{found}.length") == 1
    assert chromium.evaluate(text("timeline-text")).startswith("worker 13 of group rollout: ")
    assert "worker 1 of group" in chromium.evaluate(text("heat-text"))

    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith((job.url, "data:"))] == []


def test_a_running_update_and_its_failure_are_seen(chromium, job):
    job.publish(1)
    chromium.emulate(1280, dark=False)
    chromium.open(job.url)
    worker = job.workers["rollout", 3]
    worker.send_signal(signal.SIGSTOP)
    job.begin_publish(2)
    chromium.until(f"{text('group-table')}.includes('of 20 have all')")
    chromium.until(f"{text('group-table')}.includes('version 2')")
    worker.kill()
    chromium.until("!document.getElementById('failures').hidden")
    chromium.until(f"{text('failure-list')}.includes('version 2 in group rollout: ')")
    assert "worker 3" in chromium.evaluate(text("failure-list"))
    chromium.until(f"{text('warning-list')}.includes('group rollout waits for worker 3')")
    assert chromium.evaluate("document.getElementById('lost').hidden")
    job.controller.kill()
    chromium.until("!document.getElementById('lost').hidden")
    assert "the controller does not answer" in chromium.evaluate(text("lost")).lower()


def test_clients_that_never_read_or_never_ask_do_not_keep_others_waiting(job):
    host, port = job.url.removeprefix("http://").rstrip("/").split(":")
    with contextlib.ExitStack() as ends:
        for i in range(8):
            slow = ends.enter_context(socket.create_connection((host, int(port))))
            if i % 2 == 0:
                slow.sendall(b"GET /status.json HTTP/1.1\r\nHost: x\r\n\r\n")
        for name in ("metrics", "status.json", ""):
            with urllib.request.urlopen(job.url + name, timeout=2) as answer:
                assert answer.status == 200
