# SPDX-License-Identifier: Apache-2.0
"""Lays out the pages of the site: the documents of the tree where they are, and the reference."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tools.documentation import c_reference, go_reference, prose, python_reference
from tools.documentation.links import links

PYTHON_MODULES = [
    "waybill",
    "waybill.torch",
    "waybill.integrations.vllm",
    "waybill.integrations.sglang",
    "waybill.integrations.trl",
    "waybill.integrations.skyrl",
    "waybill.integrations.slime",
    "waybill.integrations.ray",
]

# The parts of the site, in order. A folder stands for its README and the pages beside it; the other pages that are in no
# document are written here.
PARTS = {
    "Use it": [
        "docs/quickstart.md",
        "docs/integrations",
        "docs/modes.md",
        "docs/languages.md",
        "docs/troubleshooting.md",
        "docs/limits.md",
    ],
    "Operate it": ["docs/operations", "SECURITY.md", "CHANGELOG.md"],
    "Change it": [
        "CONTRIBUTING.md",
        "docs/architecture.md",
        "docs/decisions",
        "docs/performance.md",
        "docs/hardware",
        "packages.md",
    ],
    "Reference": ["reference/python.md", "reference/c.md", "reference/rust.md", "reference/go.md"],
}
INDEX = "docs/README.md"  # It becomes the first page.


def _toctree(names, caption=None):
    options = [":hidden:"] + ([f":caption: {caption}"] if caption else [])
    return prose.fenced("{toctree}", "\n".join([*options, "", *names]))


def _stage(root, files, to):
    """Copies all documents, and what they link to, to the same places; returns the documents."""
    documents = [name for name in files if name.endswith(".md") and not name.startswith(".github/")]
    wanted = set(documents)
    for name in documents:
        for _, link in links((root / name).read_text(encoding="utf-8")):
            if target := link.partition("#")[0]:
                wanted.add(os.path.normpath(os.path.join(os.path.dirname(name), target)))
    for name in wanted:
        place = to / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, place)
    return documents


def _first_page(text, to):
    """Moves the index of documents to the root: its links begin in docs/."""
    moved = re.sub(
        r"\]\((?!\w+://)([^)]+)\)", lambda it: f"](<{os.path.normpath('docs/' + it[1])}>)", text
    )
    trees = [
        _toctree(
            [f"{it}/README" if "." not in it else it.removesuffix(".md") for it in names], part
        )
        for part, names in PARTS.items()
    ]
    (to / "index.md").write_text("\n\n".join([moved, *trees]) + "\n", encoding="utf-8")


def _packages(documents, to):
    """A page that lists the README of each package, and every document that no other page lists."""
    listed = {it for names in PARTS.values() for it in names} | {INDEX}
    left = [
        name for name in documents if name not in listed and os.path.dirname(name) not in listed
    ]
    rows = []
    for name in left:
        text = (to / name).read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)[1]
        rows.append(f"| [{os.path.dirname(name) or name}]({name}) | {title} |")
    text = ["# Packages", "Each package has a README.", "\n".join(["| | |", "|---|---|", *rows])]
    text.append(_toctree([name.removesuffix(".md") for name in left]))
    (to / "packages.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


def _folders(documents, to):
    """The README of each folder among the parts lists the pages beside it."""
    for folder in (it for names in PARTS.values() for it in names if "." not in it):
        beside = [it for it in documents if os.path.dirname(it) == folder]
        names = [Path(it).stem for it in beside if not it.endswith("/README.md")]
        with open(to / folder / "README.md", "a", encoding="utf-8") as readme:
            readme.write("\n" + _toctree(names) + "\n")


def _go(root):
    """Returns the page of the Go module, or one that says why there is none."""
    go = shutil.which("go")
    if go is None:
        return "# Go\n\nThe site was built without Go.\n"
    said = subprocess.run(
        [go, "doc", "-all"],
        cwd=root / "bindings/go",
        env={**os.environ, "GOFLAGS": "-mod=mod", "GOPROXY": "off"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return go_reference.page(said)


def _reference(root, to, has_rust):
    (to / "reference").mkdir()
    header = (root / "capi/waybill.h").read_text(encoding="utf-8")
    pages = {
        "c": c_reference.page(header),
        "go": _go(root),
        "python": python_reference.page(root / "bindings/python", "Python", PYTHON_MODULES),
        "rust": "# Rust\n\n"
        + (
            "<a href='../rust/waybill/index.html'>The documentation of the crate</a>, as rustdoc writes it.\n"
            if has_rust
            else "The site was built without Rust.\n"
        ),
    }
    for name, text in pages.items():
        (to / "reference" / f"{name}.md").write_text(text, encoding="utf-8")


def lay_out(root, files, to, has_rust):
    """Writes all pages to the folder `to`, which is empty. `files` are those of the checkout at `root`."""
    documents = _stage(root, files, to)
    _first_page((to / INDEX).read_text(encoding="utf-8"), to)
    (to / INDEX).unlink()
    documents.remove(INDEX)
    _packages(documents, to)
    _folders(documents, to)
    _reference(root, to, has_rust)
