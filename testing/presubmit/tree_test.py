# SPDX-License-Identifier: Apache-2.0
"""Every rule, on the tree as it is."""

import re
from pathlib import Path

import pytest

from testing.presubmit.documents import DOCUMENT_RULES, broken_links
from testing.presubmit.layers import layer_violations
from testing.presubmit.source_rules import SOURCE_RULES, types_defined_twice
from tools.build_rules.source_tree import source_files
from tools.documentation.pages import INDEX, PARTS

ROOT = Path("WORKSPACE").resolve().parent


@pytest.fixture(scope="module")
def texts():
    """path -> text of every file that is text."""
    found = {}
    for name in source_files(ROOT):
        try:
            found[name] = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    assert "core/README.md" in found or "WORKSPACE" in found
    return found


def say(found):
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_layers(texts):
    say(layer_violations({p: t for p, t in texts.items() if Path(p).name == "BUILD"}))


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=lambda rule: rule.__name__)
def test_sources(texts, rule):
    say([line for path, text in texts.items() for line in rule(path, text)])


def test_a_type_has_one_definition(texts):
    say(types_defined_twice(texts))


@pytest.mark.parametrize("rule", DOCUMENT_RULES, ids=lambda rule: rule.__name__)
def test_documents(texts, rule):
    say(rule(texts))


def test_links_of_documents(texts):
    say(broken_links(texts, set(source_files(ROOT))))


def test_the_site_has_the_pages_that_it_lists(texts):
    pages = [INDEX, *(page for part in PARTS.values() for page in part)]
    written = {page for page in pages if page.startswith("reference/")} | {"packages.md"}
    for page in {*pages} - written:
        path = page if page.endswith(".md") else f"{page}/README.md"
        assert path in texts, f"tools/documentation/pages.py lists {page}, which is not there"


def test_every_test_is_in_a_target(texts):
    unnamed = []
    for path in map(Path, texts):
        if not re.search(r"_test\.(cc|go|py|sh)$|(^|/)test_\w+\.py$", str(path)):
            continue
        package = next(p for p in path.parents if str(p / "BUILD") in texts)
        stem = path.stem.removesuffix("_test").removeprefix("test_")
        named = rf"""[/"](test_)?{stem}(_test)?[."]|glob\(\["\*_test"""
        if not re.search(named, texts[str(package / "BUILD")]):
            unnamed.append(f"{path}: no target of {package}/BUILD has it, so it never runs")
    say(unnamed)


def test_setup_installs_what_the_repositories_need(texts):
    needed = set()
    for names in re.findall(r"debian = \[(.*?)\]", texts["tools/build_rules/repositories.bzl"]):
        needed.update(re.findall(r'"([^"]+)"', names))
    installed = set(re.search(r"packages=\((.*?)\)", texts["tools/setup"], re.DOTALL)[1].split())
    assert needed
    assert needed <= installed
