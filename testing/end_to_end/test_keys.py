# SPDX-License-Identifier: Apache-2.0
"""A job whose processes have keys instead of the secret."""

import json
import os
import signal

import processes
import pytest


class Job:
    """A controller with a key, and the keys of everybody else."""

    def __init__(self, tmp_path):
        self.folder = tmp_path
        self.checkpoint = processes.small_checkpoint(tmp_path)
        (tmp_path / "secret").write_text("the right secret\n")
        (tmp_path / "revoked").write_text("# none\n")
        for role in ("controller", "trainer", "observer", "operator"):
            self.issue(role)
        self.issue("worker", "--group", "a")
        self.controller = self.start("127.0.0.1:0")
        self.address = self.controller.first_line().split(" on ")[1].split(",")[0]

    def key(self, role):
        return str(self.folder / f"{role}.key")

    def issue(self, role, *more):
        """Issues a key. It replaces an earlier one in one piece, because a rank may read it at any time."""
        new = str(self.folder / "new")
        processes.run(
            "keys", "issue", role, "--job", "j", "--token-file", str(self.folder / "secret"),
            "--to", new, *more,
        )  # fmt: skip
        os.replace(new, self.key(role))

    def serial(self, role):
        return json.loads(processes.run("keys", "show", self.key(role), "--json")[0])["serial"]

    def start(self, address):
        return processes.Started(
            "controller", "--listen", address, "--job", "j", "--token-file", self.key("controller"),
            "--state", str(self.folder / "decisions"), "--revoked", str(self.folder / "revoked"),
        )  # fmt: skip

    def arguments(self, command, key, *more):
        return [
            command, "--job", "j", "--controller", self.address, "--token-file", self.key(key),
            "--checkpoint", self.checkpoint, "--rank", "0", "--world", "1", *more,
        ]  # fmt: skip

    def ask(self, command, key, *more):
        return [command, *more, "--controller", self.address, "--token-file", self.key(key)]


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    with made.controller:
        yield made


def test_each_role_does_its_part_and_no_other(job):
    with processes.Started(*job.arguments("worker", "worker", "--group", "a")) as worker:
        out, _ = processes.run(*job.arguments("trainer", "trainer", "--version", "7"))
        assert "version 7" in out
        processes.run(*job.ask("status", "observer"))
        processes.run(*job.ask("verify", "operator"))
        for command, key, more in [
            ("status", "worker", []),
            ("verify", "observer", []),
            ("remove-group", "trainer", ["a"]),
            ("remove-group", "worker", ["a"]),
        ]:
            _, err = processes.run(*job.ask(command, key, *more), expect=1)
            assert "the key is that of " in err and "; use the key of an o" in err
        for command, key, more in [
            ("trainer", "worker", ["--version", "8"]),
            ("worker", "trainer", ["--group", "a"]),
            ("worker", "worker", ["--group", "b"]),
        ]:
            _, err = processes.run(*job.arguments(command, key, *more), expect=1)
            assert f"join as a {command}" in err and "; use the key of a " in err
        out, _ = processes.run(*job.ask("remove-group", "operator", "a"))
        assert "1 worker was dismissed" in out
        status, _, err = worker.result()
        assert status == 0 and "worker 0 ends: " in err and "removed" in err


def test_a_key_is_replaced_while_its_rank_runs(job):
    with processes.Started(
        *job.arguments("worker", "worker", "--group", "a", "--versions", "2")
    ) as worker:
        processes.run(*job.arguments("trainer", "trainer", "--version", "7"))
        old = job.serial("worker")
        job.issue("worker", "--group", "a")
        job.controller.end(signal.SIGKILL)
        (job.folder / "revoked").write_text(f"{old} the worker's first\n")
        with job.start(job.address) as controller:
            controller.first_line()
            processes.run(*job.arguments("trainer", "trainer", "--version", "8"))
            code, out, err = worker.result()
            assert code == 0, err
            assert "version 8 is shown" in out


def test_a_revoked_rank_is_dismissed(job):
    with processes.Started(*job.arguments("worker", "worker", "--group", "a")) as worker:
        processes.run(*job.arguments("trainer", "trainer", "--version", "7"))
        serial = job.serial("worker")
        (job.folder / "revoked").write_text(serial)
        code, out, err = worker.result()
        assert code == 1, (out, err)
        assert f"is revoked (serial {serial})" in err


def test_a_key_says_what_is_wrong_with_it(job):
    (job.folder / "nobody.key").write_text("-----BEGIN and nothing else\n")
    for key, why in [
        ("nobody", "the token is a PEM text, but not a key"),
        ("missing", "missing.key cannot be read: No such file or directory"),
    ]:
        _, err = processes.run(*job.ask("status", key), expect=1)
        assert why in err
    _, err = processes.run(
        "controller", "--listen", "127.0.0.1:0", "--job", "j", "--token-file", job.key("trainer"), expect=1
    )  # fmt: skip
    assert "use the job's secret or the key of a controller" in err
