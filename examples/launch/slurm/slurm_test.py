"""waybill.sbatch moves weights, with a stand-in for srun that starts all tasks on this host."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path("examples/launch/slurm/waybill.sbatch")
# What the script asks of sbatch, as its manual has it.
SBATCH_OPTIONS = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "time"}

SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 1
echo "$3" | tr , '\\n'
"""


def directives():
    found = re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SCRIPT.read_text(), re.M)
    assert found
    return dict(found)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Slurm:
    """Runs a batch script as sbatch has it run on the job's first node."""

    def __init__(self, folder):
        self.folder = folder
        self.log = folder / "srun.log"
        programs = folder / "bin"
        programs.mkdir()
        stand_in = Path("examples/launch/slurm/srun_stand_in.py").resolve()
        (programs / "srun").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in}" "$@"\n')
        (programs / "scontrol").write_text(SCONTROL)
        (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        (programs / "waybill").symlink_to(Path("tools/waybill/waybill").resolve())

    def sbatch(self, nodes, tasks, **environment):
        """Returns how the job ended; `nodes` and `tasks` are those of sbatch's command line."""
        paths = [path for path in sys.path if path]
        return subprocess.run(
            ["bash", SCRIPT],
            env={
                "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
                "PYTHONPATH": ":".join(os.path.abspath(path) for path in paths),
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": ",".join(["localhost"] * nodes),
                "SLURM_JOB_NUM_NODES": str(nodes),
                "SLURM_NTASKS_PER_NODE": str(tasks),
                "PROGRAMS": os.path.abspath("examples/launch"),
                "SLURM_SUBMIT_DIR": str(self.folder),
                "SRUN_LOG": str(self.log),
                "WAYBILL_PORT": str(free_port()),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def steps(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


def test_every_engine_shows_every_version_of_the_trainers(slurm):
    job = slurm.sbatch(nodes=3, tasks=2, TRAINER_NODES="1")
    assert job.returncode == 0, job.stdout + job.stderr
    said = job.stdout.splitlines()
    for version in (1, 2, 3):
        assert f"trainers: version {version} is shown" in said
        for engine in (0, 1):
            for rank in (0, 1):
                line = f"engine-{engine}, rank {rank}: version {version}: {{{version / 2}}}"
                assert line in said
    assert len(slurm.steps()) == 3


def test_a_job_fails_if_one_rank_fails(slurm):
    job = slurm.sbatch(nodes=2, tasks=1, TRAINER_NODES="1", VERSIONS="many")
    assert job.returncode != 0
    assert "invalid literal for int() with base 10: 'many'" in job.stderr


def test_a_job_without_a_node_for_an_engine_says_so(slurm):
    job = slurm.sbatch(nodes=2, tasks=1)
    assert job.returncode == 1
    assert (
        "2 nodes leave none for an engine beside TRAINER_NODES=2; give more --nodes" in job.stderr
    )
    assert not slurm.log.exists()


def test_the_secret_is_on_no_command_line(slurm):
    # The ranks refuse a token other than the controller's, so that a job that succeeds has got one.
    job = slurm.sbatch(
        nodes=2, tasks=1, TRAINER_NODES="1", VERSIONS="1", WAYBILL_TOKEN="given by the user"
    )
    assert job.returncode == 0, job.stdout + job.stderr
    words = " ".join(word for step in slurm.steps() for word in step)
    assert "TOKEN" not in words and "given" not in words


def test_the_script_asks_sbatch_for_what_it_needs():
    options = directives()
    assert options.keys() == SBATCH_OPTIONS
    assert int(options["nodes"]) > 2  # TRAINER_NODES, unless given.
    assert options["ntasks-per-node"] == options["gpus-per-node"]
