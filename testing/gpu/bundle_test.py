# SPDX-License-Identifier: Apache-2.0
"""The bundle, rehearsed on a simulated driver in a root that has nothing else but glibc and a Python."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

from tools.build_rules.bundled_libraries import bundle as add_libraries
from tools.build_rules.elf import elf_files, too_new

BUNDLE = Path("testing/gpu/bundle/run.py").resolve().parent  # Not the links to its files.
(DRIVER,) = Path("testing/fake_cuda").resolve().glob("lib*.so.*")
IS_HIP = "hip" in DRIVER.name
MOST_BYTES = 48 << 20
MOST_SECONDS = 360
STEPS = ["survey", "kernels", "rates", "updates", "processes", "torch", "faults"]
# The libraries that are glibc's.
GLIBC = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|util|resolv|anl|nss_\w+))\.so\.\d+")
# Enters a root: its arguments are the root, and pairs of a path outside and one within.
ENTER = r"""
root=$1; shift
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; touch "$root$2"; fi
  mount --rbind "$1" "$root$2"
  shift 2
done
shift
mkdir -p "$root/tmp" "$root/report" "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
exec chroot "$root" "$@"
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def sizes(folder):
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def loaded_by(path):
    """The libraries that a program or library loads: [(name, path)]."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(?:^|\s)(\S+) => (/\S+) \(0x|^\s*(/\S+ld-linux\S+) \(0x", said, re.M)


def glibc_and_python():
    """Pairs of where a file or folder is, and where it is in the root."""
    python = Path(sys.executable).resolve()
    base = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix}))
    extensions = sorted((base / "lib-dynload").glob("*.so"))
    paths = {python, base}
    for binary in [python, *extensions]:
        for _, library, loader in loaded_by(binary):
            name = Path(library or loader).name
            if not name.startswith(("libstdc++", "libgcc_s")):
                paths.add(Path(library or loader))
    (libc,) = {path for path in paths if path.name == "libc.so.6"}
    paths |= {path for path in libc.parent.iterdir() if GLIBC.fullmatch(path.name)}
    return [(str(path), str(path)) for path in sorted(paths)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with the simulated driver, whose GPUs processes share, and its libraries."""
    folder = tmp_path_factory.mktemp("driver")
    shutil.copyfile("testing/gpu/sharing_driver.so", folder / DRIVER.name)
    (folder / DRIVER.name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(DRIVER.parent))  # Where the simulated one is found.
        add_libraries(folder / DRIVER.name, folder / "lib")
    return folder


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory, driver):
    """The report of all steps in an empty root, and how long they took."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no user namespaces here")
    root = tmp_path_factory.mktemp("root")
    report = tmp_path_factory.mktemp("report")
    mounts = [
        *glibc_and_python(),
        (str(BUNDLE), "/bundle"),
        (str(driver), "/driver"),
        (str(report), "/report"),
        ("/proc", "/proc"),
        ("/dev/null", "/dev/null"),
        ("/dev/urandom", "/dev/urandom"),
    ]
    python = str(Path(sys.executable).resolve())
    command = [python, "/bundle/run.py", "--to", "/report", "--small"]
    words = [word for pair in mounts for word in pair]
    begin = time.monotonic()
    done = subprocess.run(
        [*UNSHARE, "bash", "-ec", ENTER, "enter", str(root), *words, "--", *command],
        env={
            "LD_LIBRARY_PATH": "/driver",
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
            "TMPDIR": "/tmp",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode in (0, 1), done.stderr
    page = (report / "report.md").read_text()
    return json.loads((report / "report.json").read_text()), page, time.monotonic() - begin


def rows_of(report, result):
    return {
        f"{name}: {row['check']}": row["detail"]
        for name, step in report["steps"].items()
        for row in step["rows"]
        if row["result"] == result
    }


def test_it_is_small_enough_to_be_carried():
    assert sum(sizes(BUNDLE).values()) <= MOST_BYTES, sizes(BUNDLE)


def test_no_program_in_it_needs_a_newer_system_than_rhel_9(tmp_path):
    zipfile.ZipFile(BUNDLE / "programs.zip").extractall(tmp_path)
    own = [path for path in elf_files(tmp_path) if path.parent.name != "runtime"]
    assert {path.name for path in own} >= {"gpu_tests", "gpu_bench", "gpu_rank", "gpu_updates"}
    assert {path.name: too_new(path) for path in own if too_new(path)} == {}


def test_every_step_runs_in_an_empty_root_and_nothing_fails(rehearsal):
    report, _, seconds = rehearsal
    assert list(report["steps"]) == STEPS
    assert rows_of(report, "failed") == {}
    assert all(step["seconds"] is not None and step["rows"] for step in report["steps"].values())
    assert seconds <= MOST_SECONDS


def test_what_is_skipped_has_its_reason(rehearsal):
    report, _, _ = rehearsal
    reasons = {"no compute-sanitizer", "no torch", "does not run out of memory"}
    if IS_HIP:
        reasons.add("NVIDIA's driver is not here")
    skipped = rows_of(report, "skipped")
    assert {
        reason for reason in reasons if not any(reason in why for why in skipped.values())
    } == set()
    unknown = {row: why for row, why in skipped.items() if not any(r in why for r in reasons)}
    assert unknown == {}


def test_the_page_has_every_row(rehearsal):
    report, page, _ = rehearsal
    for step in report["steps"].values():
        for row in step["rows"]:
            assert f"| {row['check']} | {row['result']} |" in page


def test_rates_and_processes_tell_figures(rehearsal):
    report, _, _ = rehearsal
    rates = [fact["name"] for fact in report["steps"]["rates"]["facts"]]
    assert any("digest" in name for name in rates) and any("transpose" in name for name in rates)
    for fact in report["steps"]["processes"]["facts"]:
        assert "GB/s" in fact["value"]
        if fact["name"].startswith("local"):
            assert "shared memory, also of GPUs" in fact["value"]


def run(driver, folder, *arguments, **options):
    """Runs the bundle by its script, as where files have lost their modes."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    command = ["sh", str(BUNDLE / "run"), "--to", str(folder), "--small", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("version", ["3.10", "3.12"])
def test_it_runs_in_older_and_newer_pythons(driver, tmp_path, version):
    (found,) = Path("..").glob("local_pythons/pythons.json")
    pythons = json.loads(found.read_text())
    if version not in pythons:
        pytest.skip(f"there is no CPython {version} on this machine")
    words = ["--to", tmp_path, "--small", "--only", "survey,rates,processes"]
    environment = {"LD_LIBRARY_PATH": str(driver), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [pythons[version], BUNDLE / "run.py", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["machine"]["Python"].startswith(version)


def test_rows_survive_the_end_of_the_program(driver, tmp_path):
    with run(driver, tmp_path, "--only", "updates,processes") as process:
        process.stdout.readline()
        process.kill()
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["steps"]["updates"]["rows"]) >= 1
    assert report["steps"]["updates"]["seconds"] is None
    assert "updates (not ended)" in (tmp_path / "report.md").read_text()


def test_a_step_that_takes_too_long_is_ended_and_the_next_one_begins(driver, tmp_path):
    with run(driver, tmp_path, "--only", "kernels,updates", "--seconds", "4") as process:
        process.communicate(timeout=60)
    steps = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert list(steps) == ["kernels", "updates"]
    assert all(step["seconds"] <= 5 for step in steps.values())


def test_a_step_that_there_is_not_is_refused_by_name(driver, tmp_path):
    with run(driver, tmp_path, "--only", "flight", stderr=subprocess.PIPE) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "no step 'flight'; there are survey, kernels" in errors
