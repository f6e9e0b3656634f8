# SPDX-License-Identifier: Apache-2.0
"""What a Markdown document shows, and where it links to."""

import re

_FENCE = re.compile(r"^(`{3,})(\w*)[^\n]*\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"``.+?``|`[^`\n]+`")
_LINK = re.compile(r"\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\(([^)\s]+)\)")


def without_blocks(text):
    """Returns the text without blocks of code; every line stands where it stood."""
    return _FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)


def blocks(text):
    """Yields (language, code, line) of each block of code; it stands after that line."""
    for found in _FENCE.finditer(text):
        yield found[2], found[3], text.count("\n", 0, found.start()) + 1


def links(text):
    """Yields (line, target) of each link to a file or a heading of the tree."""
    plain = _CODE.sub(lambda found: " " * len(found.group()), without_blocks(text))
    for found in _LINK.finditer(plain):
        if "://" not in found[1] and not found[1].startswith("mailto:"):
            yield plain.count("\n", 0, found.start()) + 1, found[1]
