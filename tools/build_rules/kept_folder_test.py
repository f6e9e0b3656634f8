"""A kept folder is kept, and only where nobody else could have made it."""

from tools.build_rules.kept_folder import _mine_alone, checksum, kept_folder


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
