# SPDX-License-Identifier: Apache-2.0
"""Copies of archives on another store: fsspec's in memory, which has objects and no rename."""

import json
import struct

import fsspec
import pytest

from waybill.archives import INDEX, copy_versions, fetch_version, main, versions
from waybill.errors import DataLoss, InvalidArgument, NotFound

URL = "memory://run7"


@pytest.fixture(autouse=True)
def store():
    """The store, which is empty."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    return store


@pytest.fixture
def folder(tmp_path):
    """An archive's folder, with versions 1 and 2, and a part of version 3."""
    for version in (1, 2):
        write_version(tmp_path / "run7", version)
    (tmp_path / "run7" / "version-3.part").mkdir()
    (tmp_path / "run7" / "newest").symlink_to("version-2")
    return tmp_path / "run7"


def write_version(folder, version):
    """Writes a version of one tensor, as `waybill archive` does."""
    whole = folder / f"version-{version}"
    whole.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes([version] * 9)
    (whole / "model.safetensors").write_bytes(content)
    (whole / "zz.txt").write_text("sorts after the index")
    (whole / INDEX).write_text(json.dumps({"weight_map": {"w": "model.safetensors"}}))


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_what_was_copied_is_fetched_as_it_was(folder, tmp_path):
    assert copy_versions(folder, URL) == [1, 2]
    assert copy_versions(folder, URL) == []
    assert versions(URL) == [1, 2]
    assert fetch_version(URL, tmp_path / "back") == 2
    assert contents(tmp_path / "back" / "newest") == contents(folder / "version-2")
    assert fetch_version(URL, tmp_path / "back", 1) == 1
    assert contents(tmp_path / "back" / "newest") == contents(folder / "version-1")


def test_a_copy_that_is_interrupted_anywhere_is_not_a_version_and_is_completed(
    folder, store, monkeypatch
):
    copies = 0
    put_file = store.put_file

    def put_some(*arguments):
        nonlocal copies
        copies += 1
        if copies > allowed:
            raise OSError("the network is gone")
        put_file(*arguments)

    monkeypatch.setattr(store, "put_file", put_some)
    for allowed in range(6):
        store.store.clear()
        copies = 0
        with pytest.raises(OSError, match="the network is gone"):
            copy_versions(folder, URL)
        assert versions(URL) == ([1] if allowed >= 3 else [])
    allowed = 100
    assert copy_versions(folder, URL) == [2]
    assert versions(URL) == [1, 2]


def test_old_versions_are_removed_and_not_copied(folder, store):
    write_version(folder, 4)
    assert copy_versions(folder, URL, keep=2) == [2, 4]
    write_version(folder, 10)
    assert copy_versions(folder, URL, keep=2) == [10]
    assert versions(URL) == [4, 10]
    assert not any("version-2/" in path for path in store.store)
    store.pipe_file("/run7/version-3/model.safetensors", b"of a copy that was interrupted")
    assert copy_versions(folder, URL, keep=2) == []
    assert not any("version-3/" in path for path in store.store)
    with pytest.raises(InvalidArgument, match="keep is -1"):
        copy_versions(folder, URL, keep=-1)


def test_a_version_is_no_version_any_more_while_it_is_being_removed(folder, store, monkeypatch):
    copy_versions(folder, URL)

    def fail(*_, **__):
        raise OSError("the network is gone")

    monkeypatch.setattr(store, "rm", fail)
    with pytest.raises(OSError, match="gone"):
        copy_versions(folder, URL, keep=1)
    assert versions(URL) == [2]


def test_another_number_of_bytes_is_noticed(folder, store, monkeypatch, tmp_path):
    put_file = store.put_file

    def cut(source, to):
        put_file(source, to)
        store.pipe_file(to, store.cat_file(to)[:-1])

    with monkeypatch.context() as patch:
        patch.setattr(store, "put_file", cut)
        with pytest.raises(DataLoss, match=r"version-1/model.safetensors.*it has \d+ bytes, and"):
            copy_versions(folder, URL)
        assert versions(URL) == []
    copy_versions(folder, URL)
    path = "/run7/version-2/model.safetensors"
    store.pipe_file(path, store.cat_file(path)[:-1])
    with pytest.raises(
        DataLoss, match=r"model.safetensors: it has \d+ bytes, and \d+ by its header"
    ):
        fetch_version(URL, tmp_path / "back")
    assert not (tmp_path / "back" / "newest").exists()


def test_what_is_not_there_is_named(folder, tmp_path):
    with pytest.raises(NotFound, match=r"memory://run7: no version is whole there; it has none"):
        fetch_version(URL, tmp_path / "back")
    copy_versions(folder, URL)
    with pytest.raises(NotFound, match=r"no version 7 is whole there; it has \[1, 2\]"):
        fetch_version(URL, tmp_path / "back", 7)
    with pytest.raises(InvalidArgument, match="nostore://x"):
        versions("nostore://x")


def test_a_version_that_the_archive_removes_meanwhile_is_left_out(folder, store, monkeypatch):
    put_file = store.put_file

    def remove_first(source, to):
        if "version-1" in to:
            raise FileNotFoundError(source)
        put_file(source, to)

    monkeypatch.setattr(store, "put_file", remove_first)
    assert copy_versions(folder, URL) == [2]
    assert versions(URL) == [2]


def test_the_command_copies_and_fetches(folder, tmp_path, capsys):
    main(["copy", str(folder), URL, "--once", "--keep", "1"])
    main(["fetch", URL, str(tmp_path / "back")])
    assert capsys.readouterr().out.splitlines() == [
        f"version 2 is at {URL}",
        f"{tmp_path}/back/newest is version 2",
    ]
