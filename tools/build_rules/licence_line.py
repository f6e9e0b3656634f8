# SPDX-License-Identifier: Apache-2.0
"""The line that names the licence, with which every source file begins."""

from pathlib import PurePosixPath

LINE = "SPDX-License-Identifier: Apache-2.0"

# What stands around it, and behind it: the comment after a blank line says what the file is.
_SLASHES = (f"// {LINE}\n", "\n")
_STARS = (f"/* {LINE} */\n", "\n")
_HASH = (f"# {LINE}\n", "")
_STYLES = {
    **dict.fromkeys((".cc", ".cu", ".cuh", ".go", ".h", ".hpp", ".proto", ".rs"), _SLASHES),
    ".c": _STARS,
    **dict.fromkeys((".bzl", ".py", ".pyi", ".sh"), _HASH),
}
# C99 knows //, and C89 does not.
_C_HEADERS = {"capi/waybill.h"}


def style(path, text):
    """Returns the line and what follows it, or None for a file that has none. Examples are shown in documents as they are."""
    parts = PurePosixPath(path).parts
    if "examples" in parts or "golden" in parts:
        return None
    if path in _C_HEADERS:
        return _STARS
    suffix = PurePosixPath(path).suffix
    if not suffix and text.startswith("#!"):
        return _HASH
    return _STYLES.get(suffix)


def with_licence(path, text):
    """Returns the text with the line, after the one that names an interpreter."""
    found = style(path, text)
    if found is None or not text:
        return text
    line, gap = found
    first, rest = "", text
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
        first += "\n"
    return text if rest.startswith(line) else first + line + gap + rest
