# SPDX-License-Identifier: Apache-2.0
"""Rules on documents: each gets all texts, path -> text, and tells what is wrong."""

import ast
import posixpath
import re
import textwrap

from tools.documentation.links import blocks, links, without_blocks

# The README is for somebody who has five minutes.
README_BYTES = 8192
CHANGE_CHARACTERS = 200

# A comment that names a file, and behind it the file's text.
SHOWN = re.compile(r"<!-- (\S+) -->\n+```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTION = re.compile(
    r"## (Unreleased|\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d)|### \d{4}-\d\d-\d\d|# Changelog"
)
# What a benchmark says, which docs/performance.md keeps.
MEASURED = re.compile(r"\d (?:GB/s|MB/s|s/GB)|\d \[\d|\bbench:|//testing/bench")


def _documents(texts):
    return {path: text for path, text in texts.items() if path.endswith(".md")}


def _line(text, offset):
    return text.count("\n", 0, offset) + 1


def _anchors(text):
    """The names by which links find a document's headings, as GitHub makes them."""
    found = {}
    for title in re.findall(r"^#{1,6} (.+?)\s*$", without_blocks(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {n if i == 0 else f"{n}-{i}" for n, count in found.items() for i in range(count + 1)}


def broken_links(texts, files):
    """Links of documents whose file or heading is not there. `files`: all paths, also of what is no text."""
    documents = _documents(texts)
    anchors = {path: _anchors(text) for path, text in documents.items()}
    wrong = []
    for path, text in documents.items():
        for line, link in links(text):
            target, _, anchor = link.partition("#")
            to = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            to = to if target else path
            where = f"{path}:{line}: {link}"
            if to not in files:
                wrong.append(f"{where}: there is no such file")
            elif anchor and to in anchors and anchor not in anchors[to]:
                wrong.append(f"{where}: {to} has no such heading")
    return wrong


def shown_files(texts):
    """Code blocks that are not what the file has that the comment before them names."""
    return [
        f"{path}:{_line(text, found.start())}: the block is not {found[1]} as it is"
        for path, text in _documents(texts).items()
        for found in SHOWN.finditer(text)
        if texts.get(found[1]) != found[2]
    ]


def broken_code(texts):
    """Blocks of Python that do not parse, and lines that call `waybill` by a command or an option that it lacks."""
    sources = "".join(
        t for path, t in texts.items() if re.match(r"tools/waybill/[\w/]+\.cc$", path)
    )
    commands = set(re.findall(r'add_subcommand\(\s*"([\w-]+)"', sources))
    wrong = []
    for path, text in _documents(texts).items():
        for language, code, line in blocks(text):
            if language == "python":
                try:
                    ast.parse(textwrap.dedent(code).replace(">>> ", ""))
                except SyntaxError as error:
                    wrong.append(f"{path}:{line + (error.lineno or 0)}: {error.msg}")
            elif language in ("", "sh"):
                for number, it in enumerate(code.split("\n"), line + 1):
                    for command, rest in re.findall(r"(?:^|\s)waybill ([a-z][\w-]*)([^#\n]*)", it):
                        where = f"{path}:{number}: waybill {command}"
                        if command not in commands:
                            wrong.append(f"{where}: there is no such command")
                        wrong += [
                            f"{where}: {option}: there is no such option"
                            for option in re.findall(r"(?:^|\s)(--[\w-]+)", rest)
                            if option != "--help" and not re.search(rf'"{option}[",]', sources)
                        ]
    return wrong


def long_readme(texts):
    """The README beyond its size, or with figures, which age."""
    text = texts["README.md"]
    size = len(text.encode())
    wrong = []
    if size > README_BYTES:
        wrong.append(f"README.md: {size} bytes; at most {README_BYTES}: move the rest to docs")
    return wrong + [
        f"README.md:{_line(text, found.start())}: a figure; docs/performance.md has them"
        for found in MEASURED.finditer(text)
    ]


def changelog_lines(texts):
    """Sections without a version and a date, changes that are too long, and benchmarks."""
    wrong = []
    for line, text in enumerate(texts["CHANGELOG.md"].split("\n"), 1):
        where = f"CHANGELOG.md:{line}:"
        if text.startswith("#") and not SECTION.fullmatch(text):
            wrong.append(f"{where} a section is `## Unreleased`, `## VERSION - DATE` or `### DATE`")
        if len(text) > CHANGE_CHARACTERS:
            wrong.append(f"{where} {len(text)} characters; at most {CHANGE_CHARACTERS}")
        if text and not text.startswith(("#", "- ", "One line a change")):
            wrong.append(f"{where} one line a change, which begins with `- `")
        if MEASURED.search(text):
            wrong.append(f"{where} a figure; docs/performance.md has them")
    return wrong


# Where tools want the version in a file of their own: what stands before and behind it.
VERSIONS = {
    "bindings/python/pyproject.toml": r'^\[project\]\nname = "waybill"\nversion = "(.*)"$',
    "bindings/rust/Cargo.toml": r'^\[package\]\nname = "waybill"\nversion = "(.*)"$',
    "bindings/rust/Cargo.lock": r'^name = "waybill"\nversion = "(.*)"$',
    # The newest release is of this version, or of one before it.
    "CHANGELOG.md": r"^## (\d.*) - ",
}


def versions(texts):
    """Versions that are not the one of version.bzl."""
    version = re.search(r'^VERSION = "(\d+\.\d+\.\d+)"$', texts["version.bzl"], re.MULTILINE)[1]

    def parts(text):
        return [int(part) for part in text.split(".")]

    wrong = []
    for path, pattern in VERSIONS.items():
        found = re.search(pattern, texts[path], re.MULTILINE)
        if found is None:
            wrong.append(f"{path}: no version")
        elif path == "CHANGELOG.md":
            if parts(found[1]) > parts(version):
                wrong.append(f"{path}: {found[1]}; version.bzl has {version}")
        elif found[1] != version:
            wrong.append(f"{path}: {found[1]}; version.bzl has {version}")
    return wrong


def promised_tests(texts):
    """Each promise of SECURITY.md names tests that exist: a test, a fuzz target or a planted bug."""
    tests = set()
    for path, text in texts.items():
        if path.endswith((".cc", ".py")):
            tests |= {
                ".".join(name)
                for name in re.findall(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", text, re.M)
            }
            tests |= set(re.findall(r"^def (test_\w+)", text, re.M))
        if re.search(r"/(\w+_fuzz\.cc|planted/\w+\.patch)$", path):
            tests.add(posixpath.splitext(posixpath.basename(path))[0])
    found, text = [], texts.get("SECURITY.md", "")
    for row in re.finditer(r"^\|.*\|.*\|(.*)\|$", text, re.M):
        named = re.findall(r"`([^`]+)`", row[1])
        if row[1].strip(" -") in ("test", ""):
            continue
        line = _line(text, row.start())
        if not named:
            found.append(f"SECURITY.md:{line}: this promise names no test")
        found += [
            f"SECURITY.md:{line}: there is no test {name}" for name in named if name not in tests
        ]
    return found


DOCUMENT_RULES = [broken_code, changelog_lines, long_readme, promised_tests, shown_files, versions]
