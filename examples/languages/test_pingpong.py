"""What README.md and docs/languages.md show runs: each language's trainer moves a tensor to each language's worker."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.languages.job import controller, program, started

DOCUMENTS = ("README.md", "docs/languages.md")

# Where each one is, as documents name it and as it lies here, and how many lines it may have.
SHOWN = {
    "python": ("examples/python/pingpong.py", "examples/python/pingpong.py", 40),
    "c": ("examples/c/pingpong.c", "examples/c/pingpong.c", 61),
    "rust": ("examples/rust/pingpong.rs", "bindings/rust/examples/pingpong.rs", 41),
    "go": ("examples/go/pingpong/main.go", "bindings/go/examples/pingpong/main.go", 41),
}


def shown_code(name):
    """Returns the fenced block after the comment that names the file."""
    text = "".join(Path(document).read_text() for document in DOCUMENTS)
    found = re.findall(rf"<!-- {re.escape(name)} -->\n+```\w+\n(.*?)^```$", text, re.DOTALL | re.M)
    assert len(found) == 1, f"{' and '.join(DOCUMENTS)} show {name} {len(found)} times"
    return found[0]


@pytest.mark.parametrize("language", SHOWN)
def test_it_is_shown_word_for_word(language):
    name, path, _ = SHOWN[language]
    assert shown_code(name) == Path(path).read_text()


@pytest.mark.parametrize("language", SHOWN)
def test_it_is_short(language):
    name, _, most = SHOWN[language]
    assert shown_code(name).count("\n") <= most


def build_c(folder):
    """The way somebody else would: by pkg-config, and strictly."""
    source, target = folder / "pingpong.c", folder / "pingpong"
    source.write_text(shown_code(SHOWN["c"][0]))
    sdk = Path("capi/dist/sdk").resolve()
    said = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "waybill"],
        env={**os.environ, "PKG_CONFIG_PATH": str(sdk / "lib/pkgconfig")},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    rpath = f"-Wl,-rpath,{sdk}/lib"
    subprocess.run(["gcc", *strict, source, "-o", target, *said, rpath], check=True)
    return [target]


def write_python(folder):
    source = folder / "pingpong.py"
    source.write_text(shown_code(SHOWN["python"][0]))
    return [sys.executable, source]


@pytest.fixture(scope="module")
def command_of(tmp_path_factory):
    """The command that runs a language's program, which is made once."""
    made = {}
    make = {
        "c": build_c,
        "go": lambda _: [program("bindings/go/programs/pingpong")],
        "python": write_python,
        "rust": lambda _: [program("bindings/rust/programs/pingpong")],
    }

    def command(language):
        if language not in made:
            made[language] = make[language](tmp_path_factory.mktemp(language))
        return made[language]

    return command


def move(folder, sender, receiver):
    """Runs a trainer and a worker, with a controller whose state lies in the folder."""
    with (
        controller(folder) as (address, environment),
        started([*receiver, "worker", address], environment) as shows,
        started([*sender, "trainer", address], environment) as sends,
    ):
        said = [rank.communicate(timeout=60)[0] for rank in (sends, shows)]
    assert said == ["trainer: 0.5 1.5 2.5 3.5\n", "worker: 0.5 1.5 2.5 3.5\n"]
    assert [sends.returncode, shows.returncode] == [0, 0]


@pytest.mark.parametrize("trainer", SHOWN)
@pytest.mark.parametrize("worker", SHOWN)
def test_a_tensor_moves(command_of, tmp_path, trainer, worker):
    move(tmp_path, command_of(trainer), command_of(worker))


@pytest.mark.parametrize("language", SHOWN)
def test_it_runs_again_with_the_state_of_the_last_run(command_of, tmp_path, language):
    command = command_of(language)
    for _ in range(2):  # The second run finds what the first one's controller has recorded.
        move(tmp_path, command, command)
        over = int(time.time())
        while int(time.time()) == over:  # The version is the second.
            pass


def test_the_worker_in_c_is_in_the_group_that_it_names(command_of, tmp_path):
    program_in_c = command_of("c")
    with (
        controller(tmp_path, "--require", "rollout-0") as (address, environment),
        started([*program_in_c, "worker", address, "rollout-0"], environment) as shows,
        started([*program_in_c, "trainer", address], environment) as sends,
    ):
        said = [rank.communicate(timeout=60)[0] for rank in (sends, shows)]
    assert said == ["trainer: 0.5 1.5 2.5 3.5\n", "worker: 0.5 1.5 2.5 3.5\n"]
