# SPDX-License-Identifier: Apache-2.0
"""Markdown from the plain text of comments and docstrings."""

import re

_CODE = re.compile(r"``?[^`]+``?|\b(?:waybill_\w+(?:\(\))?|WAYBILL_\w+\*?)")
_SPECIAL = re.compile(r"([\\*\[\]<>|#_$])")
_TERM = re.compile(r"(\S(?:[^\s]| (?! ))*)(?:  +(.*))?$")


def line(text):
    """Returns a line in which names are code, and nothing else has a meaning to Markdown."""
    out, end = [], 0
    for found in _CODE.finditer(text):
        out.append(_SPECIAL.sub(r"\\\1", text[end : found.start()]))
        code = found.group()
        out.append(code if code.startswith("`") else f"`{code}`")
        end = found.end()
    return "".join(out) + _SPECIAL.sub(r"\\\1", text[end:])


def fenced(language, code):
    ticks = "````" if "```" in code else "```"
    return f"{ticks}{language}\n{code.rstrip()}\n{ticks}"


def _dedent(lines):
    margin = min((len(it) - len(it.lstrip()) for it in lines if it.strip()), default=0)
    return [it[margin:] for it in lines]


def _terms(lines):
    """Returns (term, text) of a paragraph whose lines are `term  text`, or None if it is another one."""
    found = []
    for it in lines:
        if it.startswith(" ") and found:
            found[-1][1].append(it.strip())
        elif (term := _TERM.match(it)) and (term[2] or len(term[1].split()) < 5):
            found.append((term[1], [term[2]] if term[2] else []))
        else:
            return None
    gaps = sum(1 for it in lines if re.match(r"\S.*?\S?  +\S", it))
    return found if gaps and all(text for _, text in found) else None


def _paragraph(lines):
    if all(it.startswith("  ") for it in lines):
        return fenced("text", "\n".join(_dedent(lines)))
    if lines[0].startswith(">>> "):
        return fenced("python", "\n".join(lines))
    if terms := _terms(lines):
        rows = [f"| `{term}` | {line(' '.join(text))} |" for term, text in terms]
        return "\n".join(["| | |", "|---|---|", *rows])
    out = []
    for it in lines:
        if it.startswith("- ") or not out:
            out.append(line(it.strip()) if not it.startswith("- ") else "- " + line(it[2:]))
        elif it.startswith("  ") and not out[-1].startswith("- ") and "  " in it.strip():
            out.append(line(it.strip()))
        else:
            out[-1] += " " + line(it.strip())
    return "\n".join(out)


def markdown(text):
    """Returns paragraphs, lists, tables of `term  text`, and indented text as it is."""
    blocks, paragraph = [], []
    for it in [*text.expandtabs().splitlines(), ""]:
        if it.strip():
            paragraph.append(it.rstrip())
        elif paragraph:
            blocks.append(_paragraph(paragraph))
            paragraph = []
    return "\n\n".join(blocks)
