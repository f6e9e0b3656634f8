# SPDX-License-Identifier: Apache-2.0
"""`waybill archive`: what lies on the disk while a job goes on, and how another job begins with it."""

import json
import struct
import subprocess
from array import array

import processes
import pytest
import waybill

TENSORS = {"a": 4096, "b": 1023, "c": 1025}  # Elements.


def checkpoint_in(folder):
    """Writes a checkpoint of zeros."""
    header, at = {}, 0
    for name, count in TENSORS.items():
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    (folder / "tokenizer.json").write_text("{}")
    return str(folder)


def numbers_in(path):
    """The different numbers in each tensor of a file."""
    content = path.read_bytes()
    data = 8 + struct.unpack_from("<Q", content)[0]
    found = {}
    for name, tensor in json.loads(content[8:data]).items():
        begin, end = tensor["data_offsets"]
        assert tensor["shape"] == [TENSORS[name]] and end - begin == 4 * TENSORS[name]
        found[name] = set(array("f", content[data + begin : data + end]))
    return found


def check_whole(folder, version):
    """Compares a version's tensors, by the files that its index names, with what was published."""
    files = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(files) == set(TENSORS)
    for name, file in files.items():
        assert numbers_in(folder / file)[name] == {float(version)}


class Job:
    """A controller, an engine that gets every version, and a trainer in this process."""

    def __init__(self, folder):
        self.folder = folder
        self.archive = folder / "archive"
        self.checkpoint = checkpoint_in(folder / "checkpoint")
        self.processes = []
        self.begin("first")
        self.start("worker", "--rank", "0", "--world", "1", "--checkpoint", self.checkpoint)
        self.weights = {name: array("f", [0.0] * count) for name, count in TENSORS.items()}
        self.join_trainer()

    def begin(self, state):
        self.start("controller", "--listen", "127.0.0.1:0", "--state", str(self.folder / state))
        self.address = self.processes[-1].first_line().split(" on ")[1].split(",")[0]

    def join_trainer(self, **options):
        self.trainer = waybill.Trainer(self.address, **options)
        for name, numbers in self.weights.items():
            self.trainer.add(name, numbers)
        self.trainer.join()

    def start(self, command, *arguments):
        if command != "controller":
            arguments += ("--controller", self.address)
        self.processes.append(processes.Started(command, *arguments))
        return self.processes[-1]

    def start_archive(self, *more):
        """Returns it, and what it says first."""
        archive = self.start("archive", str(self.archive), *more)
        return archive, archive.first_line()

    def publish(self, version, **options):
        """Returns once the engine shows the version."""
        for numbers in self.weights.values():
            numbers[:] = array("f", [version] * len(numbers))
        self.trainer.publish(version, **options).committed.wait()

    def versions(self):
        return sorted(path.name for path in self.archive.iterdir())


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    yield made
    made.trainer.leave()
    for process in made.processes:
        process.__exit__()


def test_each_rank_writes_its_part_of_every_other_version_and_the_newest_are_kept(job):
    ranks = [
        job.start(
            "archive", str(job.archive), "--rank", str(rank), "--world", "2", "--every", "2",
            "--keep", "2", "--checkpoint", job.checkpoint,
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        assert "waits for version 1 or later; the archive has 0" in rank.first_line()
    for version in range(1, 8):
        job.publish(version)
        if version % 2:
            lines = [rank.first_line() for rank in ranks]
            assert all(f"version {version}: 0.0 MB in" in line for line in lines), lines
            whole = [f"whole in {job.archive}/version-{version}" in line for line in lines]
            assert sorted(whole) == [False, True], lines
    assert job.versions() == ["newest", "version-5", "version-7"]
    for version in (5, 7):
        folder = job.archive / f"version-{version}"
        check_whole(folder, version)
        assert sorted(path.name for path in folder.iterdir()) == [
            "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
            "model.safetensors.index.json", "tokenizer.json",
        ]  # fmt: skip
    assert (job.archive / "newest").resolve() == (job.archive / "version-7").resolve()


def test_a_version_that_is_approximate_is_not_archived(job):
    job.trainer.leave()
    job.join_trainer(changes="always")
    archive, _ = job.start_archive()
    job.publish(1)
    assert "version 1:" in archive.first_line()
    job.publish(2, tensors=["a"])
    assert "version 2 is approximate, and not archived" in archive.first_line()
    job.publish(3)
    assert "version 3:" in archive.first_line()
    assert job.versions() == ["newest", "version-1", "version-3"]
    check_whole(job.archive / "version-3", 3)


def test_when_all_have_died_engines_get_the_newest_version_before_a_trainer_is_back(job):
    archive, _ = job.start_archive()
    job.publish(3)
    assert "version 3:" in archive.first_line()
    for process in job.processes:
        process.process.kill()
    job.begin("second")
    newest = str(job.archive / "newest")
    engine = job.start(
        "worker", "--rank", "0", "--world", "1", "--checkpoint", job.checkpoint,
        "--dump", str(job.folder / "shown"), "--versions", "1",
    )  # fmt: skip
    processes.run(
        "trainer", "--rank", "0", "--world", "1", "--controller", job.address,
        "--checkpoint", newest, "--version", "3",
    )  # fmt: skip
    assert engine.result()[1:] == ("worker 0: version 3 is shown\n", "")
    shown = numbers_in(job.folder / "shown" / "worker-0.safetensors")
    assert shown == {name: {3.0} for name in TENSORS}


def test_a_full_disk_costs_the_version_and_neither_those_before_nor_the_job(job):
    archive, _ = job.start_archive()
    limit = ["prlimit", "--pid", str(archive.process.pid)]
    job.publish(1)
    assert "version 1:" in archive.first_line()
    subprocess.run([*limit, "--fsize=1024:"], check=True)
    job.publish(2)
    why = archive.error_line("waybill: archive version 2: ")
    assert "version-2.part" in why and why.endswith(
        "RLIMIT_FSIZE is 1024 bytes; the next version is tried"
    )
    subprocess.run([*limit, "--fsize=unlimited:"], check=True)
    job.publish(3)
    assert "version 3:" in archive.first_line()
    assert job.versions() == ["newest", "version-1", "version-3"]
    check_whole(job.archive / "version-1", 1)
    check_whole(job.archive / "newest", 3)


def test_an_archive_that_has_versions_goes_on_after_them(job):
    archive, _ = job.start_archive()
    job.publish(4)
    assert "version 4:" in archive.first_line()
    archive.process.kill()
    left = job.archive / "version-7.part"
    left.mkdir()
    (left / "model-00002-of-00002.safetensors").write_text("of another job")
    again, said = job.start_archive("--every", "3")
    assert "waits for version 7 or later; the archive has 1, up to 4" in said
    for version in (5, 6, 7):
        job.publish(version)
    assert "version 7:" in again.first_line()
    assert job.versions() == ["newest", "version-4", "version-7"]
    assert sorted(path.name for path in (job.archive / "version-7").iterdir()) == [
        "model-00001-of-00001.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip


@pytest.mark.parametrize("arguments,why", [
    (["--every", "0"], "--every"),
    (["--rank", "2", "--world", "2"], "--rank 2 of --world 2: ranks count from 0"),
    (["--checkpoint", "/no/such"], 'list "/no/such": No such file or directory'),
])  # fmt: skip
def test_what_cannot_be_is_refused_at_once(tmp_path, arguments, why):
    done = subprocess.run(
        [processes.WAYBILL, "archive", str(tmp_path / "archive"), *arguments],
        capture_output=True, text=True, timeout=processes.DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert why in done.stderr
