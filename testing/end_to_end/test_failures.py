# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as a user meets it: the exit status, the one line, and what is still shown."""

import json
import signal
import struct

import processes
import pytest

SMALL = ["--model", "gpt2", "--layers", "1"]


def test_a_killed_trainer_leaves_the_old_version_whole():
    out, why = processes.demo_that_fails(*SMALL, "--versions", "2", "--kill", "trainer 1")
    assert "worker 0 still shows version 1, every byte right" in out
    assert "worker 1 still shows version 1, every byte right" in out
    assert processes.says_lost("trainer 1", why)


def test_a_killed_trainer_leaves_memory_in_place_dirty_and_says_so():
    out, why = processes.demo_that_fails(
        *SMALL, "--versions", "2", "--mode", "in-place", "--kill", "trainer 1"
    )
    assert processes.says_lost("trainer 1", why)
    for worker in (0, 1):
        shown = f"worker {worker} still shows version 1, every byte right" in out
        dirty = f"worker {worker}: take a snapshot: the memory is dirty" in out
        assert shown != dirty  # Killed before anything could be written, or after.


def test_a_killed_worker_is_named():
    out, why = processes.demo_that_fails(*SMALL, "--versions", "2", "--kill", "worker 1")
    assert "worker 0 still shows version 1, every byte right" in out
    assert "worker 1" in why


BAD_HEADERS = [
    (b"", "is"),
    (struct.pack("<Q", 2**63) + b"{}", "header"),
    (struct.pack("<Q", 2**64 - 1) + b"{}", "header"),
    (struct.pack("<Q", 2) + b"[]", "array"),
    (struct.pack("<Q", 9) + b'{"a": {}}', '"a"'),
]


@pytest.mark.parametrize("content,named", BAD_HEADERS)
def test_a_file_that_lies_is_an_error_with_its_name(tmp_path, content, named):
    (tmp_path / "model.safetensors").write_bytes(content)
    _, why = processes.demo_that_fails("--checkpoint", str(tmp_path), "--versions", "1")
    assert "model.safetensors" in why
    assert named in why


def test_memory_that_cannot_be_had_is_an_error_at_join(tmp_path):
    checkpoint = processes.small_checkpoint(tmp_path)
    _, err = processes.run("demo", "--checkpoint", checkpoint, expect=1, limit_file_bytes=1 << 20)
    assert "allocate" in err and "bytes): ftruncate: File too large (errno 27)" in err
    assert "RLIMIT_FSIZE is 1048576 bytes" in err


def test_a_dump_that_cannot_be_written_is_an_error(tmp_path):
    checkpoint = processes.small_checkpoint(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    _, why = processes.demo_that_fails(
        "--checkpoint", checkpoint, "--versions", "1", "--dump", str(tmp_path / "file")
    )
    assert "dump version 1" in why and "worker-0.safetensors" in why


def test_without_a_controller_the_error_says_where_it_looked(tmp_path):
    checkpoint = processes.small_checkpoint(tmp_path)
    _, err = processes.run(
        "trainer", "--rank", "0", "--world", "1", "--checkpoint", checkpoint,
        "--controller", "127.0.0.1:1", "--join-timeout", "0.3", expect=1,
    )  # fmt: skip
    assert "controller 127.0.0.1:1: nobody answered" in err


def test_an_unknown_model_lists_those_there_are():
    _, err = processes.run("plan", "--model", "gpt5", expect=1)
    assert '"gpt5" is not one of gpt2, gpt2-medium' in err


class Job:
    """A controller, and how its ranks are called."""

    def __init__(self, tmp_path):
        self.checkpoint = processes.small_checkpoint(tmp_path)
        self.env = {"WAYBILL_TOKEN": "the right secret"}
        self.controller = processes.Started(
            "controller", "--listen", "127.0.0.1:0", "--job", "j", "--state", str(tmp_path / "decisions"),
            env=self.env,
        )  # fmt: skip
        self.address = self.controller.first_line().split(" on ")[1].split(",")[0]

    def arguments(self, role, *more):
        common = ["--job", "j", "--controller", self.address, "--checkpoint", self.checkpoint]
        if "--world" not in more:
            common += ["--rank", "0", "--world", "1"]
        return [role, *common, *more]

    def status(self):
        out, _ = processes.run("status", "--controller", self.address, "--json", env=self.env)
        return json.loads(out)


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    with made.controller:
        yield made


def test_roles_can_be_run_by_hand(job):
    with processes.Started(*job.arguments("worker", "--versions", "1"), env=job.env) as worker:
        with processes.Started(*job.arguments("trainer", "--version", "7"), env=job.env) as trainer:
            code, out, err = trainer.result()
            assert code == 0, err
            assert "version 7" in out
        code, out, err = worker.result()
        assert code == 0, err
        assert "version 7 is shown" in out
    assert job.status()["committed_version"] == 7


def test_the_stages_of_a_running_job_can_be_traced(job, tmp_path):
    with processes.Started(*job.arguments("worker"), env=job.env):
        processes.run(*job.arguments("trainer", "--version", "7"), env=job.env)
        trace = tmp_path / "trace.json"
        out, _ = processes.run(
            "status", "--controller", job.address, "--trace", str(trace), env=job.env
        )
    (worker,) = [line.split() for line in out.splitlines() if line.startswith("worker 0")]
    assert worker[-5:-1] == ["ms", "host", worker[-3], "ms"]
    stages = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"receive", "verify"} <= {stage["name"] for stage in stages}
    assert {stage["args"]["version"] for stage in stages} == {7}


def test_a_group_cannot_write_to_the_terminal(job):
    refused = ["a\x1b[2J", "a\x9b2J", "a\u202eb"]
    for group in refused:
        _, err = processes.run(*job.arguments("worker", "--group", group), expect=1, env=job.env)
        assert "a group's name has 1 to 256 bytes and no control characters" in err
        assert not any(c in err for c in "\x1b\x9b\u202e")


def test_trainers_that_are_started_by_hand_publish_the_same_version(job):
    with processes.Started(*job.arguments("worker"), env=job.env):
        for version in (1, 2):
            trainers = [
                processes.Started(
                    *job.arguments("trainer", "--world", "3", "--rank", str(rank)), env=job.env
                )
                for rank in range(3)
            ]
            for trainer in trainers:
                with trainer:
                    code, out, err = trainer.result()
                    assert code == 0, err
                    assert f"version {version}:" in out


@pytest.mark.parametrize("word", ["commit", "abort"])
def test_a_version_that_is_held_waits_for_a_line_or_the_end_of_input(job, word):
    def trainer(rank):
        arguments = job.arguments("trainer", "--world", "2", "--rank", str(rank), "--hold-commit")
        return processes.Started(*arguments, env=job.env)

    with processes.Started(*job.arguments("worker"), env=job.env):
        with trainer(0) as asked, trainer(1) as other:
            for one in (asked, other):
                assert "version 1 has arrived and waits" in one.first_line()
            assert job.status()["committed_version"] == 0
            if word == "commit":
                asked.say("\n")
            else:
                asked.process.stdin.close()
                asked.process.stdin = None
            for one in (asked, other):
                code, out, err = one.result()
                if word == "commit":
                    assert code == 0 and "version 1:" in out, err
                else:
                    assert code == 1 and "trainer 0: standard input has ended" in err


def test_a_version_that_does_not_grow_is_refused_even_by_the_next_trainer(job):
    with processes.Started(*job.arguments("worker"), env=job.env):
        processes.run(*job.arguments("trainer", "--version", "7"), env=job.env)
        _, err = processes.run(*job.arguments("trainer", "--version", "7"), expect=1, env=job.env)
        assert "publish version 7: version 7 is committed, and versions only grow" in err


def test_a_worker_that_does_not_say_what_it_shows_is_named(job):
    verify = ["verify", "--controller", job.address]
    _, err = processes.run(*verify, expect=1, env=job.env)
    assert "no worker has joined" in err
    with processes.Started(*job.arguments("worker"), env=job.env) as worker:
        processes.run(*job.arguments("trainer", "--version", "7"), env=job.env)
        out, _ = processes.run(*verify, env=job.env)
        assert "right" in out
        worker.process.send_signal(signal.SIGSTOP)
        out, err = processes.run(*verify, "--timeout", "1", expect=1, env=job.env)
        assert "not verified: it has not answered within 1s" in out
        assert "1 of 1 workers" in err
        with processes.Started(*verify, env=job.env) as asking:
            processes.until(lambda: is_asked(job), "the stopped worker is asked")
            worker.end(signal.SIGKILL)
            code, out, _ = asking.result()
        assert code == 1
        assert "not verified: it is gone, and has not answered" in out


def is_asked(job):
    """Whether the workers are being asked; it asks none itself."""
    _, err = processes.run(
        "verify", "--controller", job.address, "--group", "nobody", expect=1, env=job.env
    )
    return "are being asked already" in err


def test_a_wrong_token_is_turned_away(job):
    _, err = processes.run(
        *job.arguments("trainer"), expect=1, env={"WAYBILL_TOKEN": "the wrong secret"}
    )
    assert "its token is another one" in err


def test_a_rank_joins_once(job):
    with processes.Started(*job.arguments("worker"), env=job.env):
        processes.until(lambda: job.status()["ranks"], "the worker has joined")
        _, err = processes.run(*job.arguments("worker"), expect=1, env=job.env)
        assert "worker 0 of job" in err and "is here already" in err


def test_a_rank_that_never_comes_is_named(tmp_path):
    checkpoint = processes.small_checkpoint(tmp_path)
    with processes.Started(
        "controller", "--listen", "127.0.0.1:0", "--join-timeout", "0.5",
        "--state", str(tmp_path / "decisions"),
    ) as controller:  # fmt: skip
        address = controller.first_line().split(" on ")[1].split(",")[0]
        _, err = processes.run(
            "trainer",
            "--rank",
            "0",
            "--world",
            "1",
            "--checkpoint",
            checkpoint,
            "--controller",
            address,
            expect=1,
        )
        assert "waiting for every worker" in err


def test_each_address_of_several_controllers_is_tried(job):
    job.address = f"127.0.0.1:1,{job.address}"
    with processes.Started(*job.arguments("worker", "--versions", "1"), env=job.env) as worker:
        processes.run(*job.arguments("trainer", "--version", "7"), env=job.env)
        code, _, err = worker.result()
        assert code == 0, err
    assert job.status()["committed_version"] == 7


def test_where_none_of_several_controllers_answers_the_error_says_so():
    _, err = processes.run("status", "--controller", "127.0.0.1:1,127.0.0.1:2", expect=1)
    assert "one of 2 controllers: controller 127.0.0.1:2: nobody answered" in err


BAD_STATES = [
    (["--state", "etcd://127.0.0.1"], 'state etcd://127.0.0.1: "127.0.0.1" is not HOST:PORT'),
    (["--state", "etcd://127.0.0.1:1", "--listen", "127.0.0.1:0"], "the port must not be 0"),
]


@pytest.mark.parametrize("options,named", BAD_STATES)
def test_a_controller_that_cannot_be_one_of_several_says_why(options, named):
    _, err = processes.run("controller", *options, expect=1)
    assert named in err
