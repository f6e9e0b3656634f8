# SPDX-License-Identifier: Apache-2.0
"""A kept folder is kept, and only where nobody else could have made it."""

import os
import tarfile

from tools.build_rules.kept_folder import _mine_alone, checksum, kept_folder, unpack_anew


def test_a_folder_of_mine_alone_will_do(tmp_path):
    assert _mine_alone(tmp_path / "new")
    assert _mine_alone(tmp_path / "new")


def test_a_folder_that_others_may_write_to_will_not(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert not _mine_alone(tmp_path / "open")


def test_a_link_will_not(tmp_path):
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert not _mine_alone(tmp_path / "link")


def test_a_file_will_not(tmp_path):
    (tmp_path / "file").write_text("")
    assert not _mine_alone(tmp_path / "file")


def test_what_was_left_there_is_found_again():
    with kept_folder("kept_folder_test") as first:
        (first / "note").write_text("left here")
    with kept_folder("kept_folder_test") as second:
        assert (second / "note").read_text() == "left here"


def test_a_checksum_is_of_texts_and_contents(tmp_path):
    file = tmp_path / "file"
    file.write_text("one")
    before = checksum("text", file)
    assert checksum("text", file) == before
    assert checksum("other", file) != before
    file.write_text("two")
    assert checksum("text", file) != before


def test_what_is_unpacked_is_new_whatever_the_archive_says(tmp_path):
    (tmp_path / "top" / "lib").mkdir(parents=True)
    (tmp_path / "top" / "lib" / "file").write_text("content")
    (tmp_path / "top" / "lib" / "link").symlink_to("file")
    os.utime(tmp_path / "top" / "lib" / "file", (0, 0))
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "top", "top-1.0")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "left over").touch()
    unpack_anew(tmp_path / "archive.tar.gz", tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["lib"]
    assert (tmp_path / "target" / "lib" / "link").read_text() == "content"
    assert (tmp_path / "target" / "lib" / "file").stat().st_mtime > 0
