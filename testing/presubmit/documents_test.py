# SPDX-License-Identifier: Apache-2.0
"""Each rule on documents, on texts that break it and on texts that do not."""

import pytest

from testing.presubmit import documents

# name, a document beside docs/b.md, how many links are broken
LINKS = [
    ("a_file", "[b](b.md)", 0),
    ("a_heading", "[b](b.md#two-words)", 0),
    ("a_heading_of_its_own", "# Here\n[h](#here)", 0),
    ("the_second_of_equal_headings", "[b](b.md#again-1)", 0),
    ("another_folder", "[code](../core/a.h)", 0),
    ("an_image", "![picture](picture.svg)", 0),
    ("somewhere_else", "[x](https://example.org/x#y)", 0),
    ("in_code", "`[x](y)`\n```\n[x](y)\n```", 0),
    ("no_file", "[c](c.md)", 1),
    ("no_heading", "[b](b.md#three)", 1),
    ("no_heading_of_its_own", "[h](#here)", 1),
    ("a_folder", "[core](../core)", 1),
    ("two_on_a_line", "[c](c.md) [d](d.md)", 2),
]


@pytest.mark.parametrize(("name", "text", "wrong"), LINKS, ids=[case[0] for case in LINKS])
def test_links(name, text, wrong):
    texts = {"docs/a.md": text, "docs/b.md": "# Two `words`\n## Again\n## Again\n", "core/a.h": ""}
    found = documents.broken_links(texts, {*texts, "docs/picture.svg"})
    assert len(found) == wrong, found


def test_a_broken_link_is_named_with_its_line():
    (found,) = documents.broken_links({"a.md": "\n```\n\n```\n[c](c.md#x)"}, {"a.md"})
    assert found == "a.md:5: c.md#x: there is no such file"


SHOWN = "<!-- examples/a.py -->\n```python\n{}```\n"


@pytest.mark.parametrize(("code", "wrong"), [("a = 1\n", 0), ("a = 2\n", 1), ("a = 1\n\n", 1)])
def test_shown_files(code, wrong):
    texts = {"docs/a.md": SHOWN.format(code), "examples/a.py": "a = 1\n"}
    assert len(documents.shown_files(texts)) == wrong


def test_a_shown_file_that_is_not_there():
    assert len(documents.shown_files({"a.md": SHOWN.format("a = 1\n")})) == 1


PROMISES = [
    ("a_test", "`Suite.Rule`", 0),
    ("several", "`Suite.Rule`, `test_rule`, `tcp_fuzz`, `NoFence`", 0),
    ("none", "", 0),  # A table of another kind.
    ("words", "all of it", 1),
    ("a_test_that_is_gone", "`Suite.Rule`, `Suite.Gone`", 1),
]


@pytest.mark.parametrize(("name", "tests", "wrong"), PROMISES, ids=[case[0] for case in PROMISES])
def test_promised_tests(name, tests, wrong):
    texts = {
        "SECURITY.md": f"| cannot | by | test |\n|---|---|---|\n| a | b | {tests} |\n",
        "core/a_test.cc": "TEST_F(Suite, Rule) {\n",
        "testing/test_a.py": "def test_rule():\n",
        "testing/fuzz/tcp_fuzz.cc": "",
        "testing/simulation/planted/NoFence.patch": "",
    }
    assert len(documents.promised_tests(texts)) == wrong


CODE = [
    ("python", "python", "async for event in worker:\n    pass", 0),
    ("no_python", "python", "def f(:", 1),
    ("a_command", "", "waybill status --lanes  # --colours", 0),
    ("a_command_in_a_line", "sh", "$ nice waybill status", 0),
    ("no_command", "", "waybill fly", 1),
    ("no_option", "", "waybill status --colours", 1),
    ("a_file", "", "pip install waybill-1.whl", 0),
    ("another_language", "text", "waybill fly", 0),
]


@pytest.mark.parametrize(
    ("name", "language", "code", "wrong"), CODE, ids=[case[0] for case in CODE]
)
def test_broken_code(name, language, code, wrong):
    source = 'app.add_subcommand("status", "Shows");\ncommand->add_flag("--lanes", lanes);'
    texts = {"a.md": f"```{language}\n{code}\n```\n", "tools/waybill/running_job/status.cc": source}
    found = documents.broken_code(texts)
    assert len(found) == wrong, found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("x" * 8192, 0), ("x" * 8193, 1), ("it moves 4.8 GB/s", 1), ("12 [10, 15]", 1), ("12 MB", 0)],
)
def test_long_readme(text, wrong):
    assert len(documents.long_readme({"README.md": text})) == wrong


CHANGES = [
    ("a_change", "- fix: it works", 0),
    ("unreleased", "## Unreleased", 0),
    ("a_release", "## 0.1.0 - 2026-11-22", 0),
    ("a_day", "### 2026-11-22", 0),
    ("no_date", "## 0.1.0", 1),
    ("as_long_as_may_be", "- " + "x" * 198, 0),
    ("too_long", "- " + "x" * 199, 1),
    ("no_item", "it works", 1),
    ("a_benchmark", "- updates run at 12 GB/s", 1),
]


@pytest.mark.parametrize(("name", "text", "wrong"), CHANGES, ids=[case[0] for case in CHANGES])
def test_changelog_lines(name, text, wrong):
    found = documents.changelog_lines({"CHANGELOG.md": f"# Changelog\n\n{text}\n"})
    assert len(found) == wrong, found


def of_version(version, **others):
    """The files that have the version; `others` of a file is the version that it has instead."""

    def has(name):
        return others.get(name, version)

    return {
        "version.bzl": f'VERSION = "{version}"\n',
        "bindings/python/pyproject.toml": f'[project]\nname = "waybill"\nversion = "{has("pip")}"\n',
        "bindings/rust/Cargo.toml": f'[package]\nname = "waybill"\nversion = "{has("cargo")}"\n',
        "bindings/rust/Cargo.lock": f'[[package]]\nname = "waybill"\nversion = "{has("lock")}"\n',
        "CHANGELOG.md": f"## Unreleased\n\n## {has('changes')} - 2026-11-22\n",
    }


@pytest.mark.parametrize(
    ("others", "wrong"),
    [
        ({}, 0),
        ({"pip": "0.9.0"}, 1),
        ({"cargo": "0.11.0", "lock": "0.11.0"}, 2),
        ({"changes": "0.9.9"}, 0),
        ({"changes": "0.10.1"}, 1),
    ],
)
def test_versions(others, wrong):
    found = documents.versions(of_version("0.10.0", **others))
    assert len(found) == wrong, found
