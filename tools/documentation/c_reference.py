# SPDX-License-Identifier: Apache-2.0
"""The reference of the C ABI, from the comments of its header."""

import os
import re

from tools.documentation import prose

_SECTION = re.compile(r"^/\* ---- (.+) ---- \*/$", re.MULTILINE)
_COMMENT = re.compile(r"/\*(.*?)\*/\n?", re.DOTALL)
_NAMES = re.compile(
    r"^#define (\w+)|\b(waybill_\w+)\(|^typedef struct (waybill_\w+) \{|^typedef \w+ (waybill_\w+);|\(\*(waybill_\w+)\)",
    re.MULTILINE,
)
_MACROS = re.compile(r"WAYBILL_(?:API|MUST_USE)\s+")


def _text(comment):
    """Returns the text of a comment without its margin of stars."""
    lines = [re.sub(r"^ \* ?", "", it) for it in comment.split("\n")]
    return "\n".join([lines[0].strip(), *lines[1:]]).strip()


def _items(section):
    """Yields (comment, declarations): a comment at the margin, and the code up to the next one."""
    parts = re.split(r"^(/\*.*?\*/)\n", section, flags=re.DOTALL | re.MULTILINE)
    if parts[0].strip():
        yield "", parts[0]
    for comment, code in zip(parts[1::2], parts[2::2], strict=True):
        yield _text(_COMMENT.match(comment)[1]), code


def _title(code):
    """Returns the names of what is declared, without those of initialisers."""
    bare = _COMMENT.sub("", code)
    names = [next(filter(None, found)) for found in _NAMES.findall(bare)]
    names = [name for name in dict.fromkeys(names) if not name.endswith("_INIT")]
    if not names and "enum" in bare:
        members = re.findall(r"\b(WAYBILL_\w+) =", bare)
        names = [os.path.commonprefix(members) + "*"] if len(members) > 1 else members
    return ", ".join(f"`{name}`" for name in names)


def functions(header):
    """Returns the names of all functions that the header declares."""
    return set(re.findall(r"\b(waybill_\w+)\(", _COMMENT.sub("", header)))


def page(header):
    """Returns the reference as Markdown."""
    comments = (_text(found) for found in _COMMENT.findall(header))
    manual = next(it for it in comments if not it.startswith("SPDX-"))
    out = ["# C", prose.markdown(manual)]
    body = header[: header.rindex("#ifdef __cplusplus")]
    parts = _SECTION.split(body)[1:]
    for title, section in zip(parts[::2], parts[1::2], strict=True):
        out.append(f"## {title[0].upper()}{title[1:]}")
        for comment, code in _items(section):
            names = _title(code)
            if names:
                out.append(f"### {names}")
            if comment:
                out.append(prose.markdown(comment))
            if code.strip():
                out.append(prose.fenced("c", _MACROS.sub("", code).strip("\n")))
    return "\n\n".join(out) + "\n"
