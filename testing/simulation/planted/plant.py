# SPDX-License-Identifier: Apache-2.0
"""Plants the bugs of *.patch in copies of sources, and lists the bugs.

usage: plant.py list PATCH...
       plant.py copies --root FOLDER --prefix PATH [--source FILE]... PATCH...

list prints the bugs for bug.h. copies writes FOLDER/FILE for each source, with every patch applied.
A copy includes the other copies, as PATH/FILE.
"""

import argparse
import re
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

INCLUDE = re.compile(r'^#include "([^"]+)"$', re.M)
SWITCH = '#include "testing/simulation/planted/bug.h"\n'
HEADER = re.compile(r"(Rule|First seed): (\S.*)$")


class Unplantable(Exception):
    """A patch that cannot be applied: it names the patch, and says what to do."""


@dataclass
class Hunk:
    """One place of a source: a mark (" ", "-" or "+") and a text for each line."""

    source: str
    lines: list = field(default_factory=list)

    def old(self):
        return [text for mark, text in self.lines if mark != "+"]


@dataclass
class Patch:
    bug: str
    rule: str
    first_seed: int
    hunks: list


def read_patch(name, text):
    """Returns the Patch of a file NAME.patch. Where a hunk says its lines are is ignored."""
    bug = Path(name).stem
    header, hunks, source = {}, [], None
    for line in text.splitlines():
        if hunks and line[:1] in ("", " ", "-", "+") and not line.startswith(("--- a/", "+++ b/")):
            hunks[-1].lines.append((line[:1] or " ", line[1:]))
        elif line.startswith("@@") and source:
            hunks.append(Hunk(source))
        elif line.startswith("--- a/"):
            source = line.removeprefix("--- a/").split("\t")[0]
        elif (found := HEADER.match(line)) and source is None:
            header[found[1]] = found[2]
        elif line and not line.startswith(("+++ b/", "diff ", "index ", "\\")):
            raise Unplantable(f"{name}: {line!r} is neither of its header nor of a unified diff")
    if "Rule" not in header:
        raise Unplantable(f'{name}: it lacks a line "Rule: ..." with the rule that the bug breaks')
    if not hunks:
        raise Unplantable(f"{name}: it changes nothing")
    for hunk in hunks:
        if not any(mark == "+" and f"Planted(Bug::k{bug})" in text for mark, text in hunk.lines):
            raise Unplantable(
                f"{name}: a change of {hunk.source} does not ask Planted(Bug::k{bug}), so the bug "
                f"would always be there"
            )
    return Patch(bug, header["Rule"], int(header.get("First seed", 1)), hunks)


def _place(patch, hunk, lines):
    """Returns the index of the only place in `lines` where the hunk fits."""
    old = hunk.old()
    places = [i for i in range(len(lines) - len(old) + 1) if lines[i : i + len(old)] == old]
    if len(places) == 1:
        return places[0]
    problem, remedy = (
        (f"is there {len(places)} times", "Give it more lines around the change")
        if places
        else ("is no longer there", "Make the change again in today's source")
    )
    raise Unplantable(
        f"{patch.bug}.patch does not apply to {hunk.source}: what it changes {problem}:\n\n"
        + "".join(f"    {line}\n" for line in old)
        + f"\n{remedy}, as testing/simulation/README.md says, or remove the patch if "
        f"the rule is gone ({patch.rule})"
    )


def _edits(patch, hunk, lines):
    """Yields [begin, end) of the lines that a hunk replaces, and those that it puts there."""
    at = begin = _place(patch, hunk, lines)
    added = []
    for mark, text in [*hunk.lines, (" ", None)]:
        if mark == "+":
            added.append(text)
        elif mark == "-":
            at += 1
        else:
            if at > begin or added:
                yield begin, at, added
            at = begin = at + 1
            added = []


def plant(source, text, patches):
    """Returns the text of a source with all changes that the patches make there.

    Each patch is applied to the source as it is, so none depends on another one.
    """
    lines = text.split("\n")
    edits = sorted(
        (begin, end, patch.bug, added)
        for patch in patches
        for hunk in patch.hunks
        if hunk.source == source
        for begin, end, added in _edits(patch, hunk, lines)
    )
    for (_, end, one, _), (begin, _, other, _) in pairwise(edits):
        if begin < end:
            raise Unplantable(
                f"{one}.patch and {other}.patch change the same line of {source}: "
                f"{lines[begin].strip()!r}. Plant one of them in another line"
            )
    for begin, end, _, added in reversed(edits):
        lines[begin:end] = added
    return (SWITCH if edits else "") + "\n".join(lines)


def include_copies(text, sources, prefix):
    """Returns the text with the includes of `sources` replaced by those of their copies."""

    def replace(include):
        return f'#include "{prefix}/{include[1]}"' if include[1] in sources else include[0]

    return INCLUDE.sub(replace, text)


def check_sources(patches, sources):
    """Raises Unplantable if a patch changes something else than `sources`."""
    for patch in patches:
        for hunk in patch.hunks:
            if hunk.source not in sources:
                raise Unplantable(
                    f"{patch.bug}.patch: {hunk.source} is not among the sources that are copied. If "
                    f"the simulation executes it, add its package to PACKAGES in planted.bzl"
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["list", "copies"])
    parser.add_argument("--root")
    parser.add_argument("--prefix")
    parser.add_argument("--source", action="append", default=[])
    parser.add_argument("patches", nargs="*")
    arguments = parser.parse_intermixed_args()
    try:
        patches = [read_patch(name, Path(name).read_text()) for name in arguments.patches]
        if arguments.command == "list":
            for patch in patches:
                print(f"WAYBILL_BUG({patch.bug}, {patch.first_seed})  // {patch.rule}")
            return
        check_sources(patches, arguments.source)
        for source in arguments.source:
            text = plant(source, Path(source).read_text(), patches)
            copy = Path(arguments.root, source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(include_copies(text, arguments.source, arguments.prefix))
    except Unplantable as problem:
        sys.exit(f"\nplanted bugs: {problem}\n")


if __name__ == "__main__":
    main()
