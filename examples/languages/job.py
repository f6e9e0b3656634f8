"""Processes of one job: its controller, and programs of languages that may be missing here."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

TOKEN = "a secret of the job"


@contextmanager
def controller(folder, *options):
    """Its address, and the environment in which ranks find the job's token; ends with the block."""
    environment = {**os.environ, "WAYBILL_TOKEN": TOKEN, "XDG_STATE_HOME": str(folder)}
    with subprocess.Popen(
        ["tools/waybill/waybill", "controller", "--listen", "127.0.0.1:0", *options],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process.stdout.readline().split(" on ")[1].split(",")[0], environment
        finally:
            process.terminate()


@contextmanager
def started(command, environment):
    """A program whose output is read; nothing of it is left behind."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def program(path):
    """One of //bindings/LANGUAGE:programs. Skips the test where there is none of that language."""
    file = Path(path).resolve()
    with open(file, "rb") as start:
        stand_in = start.read(2) == b"#!"
    if stand_in:
        said = subprocess.run([file], stdout=subprocess.PIPE, text=True, check=False)
        assert said.returncode == 77
        pytest.skip(said.stdout.strip())
    return file
