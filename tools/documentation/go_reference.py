# SPDX-License-Identifier: Apache-2.0
"""The reference of the Go module, from what `go doc -all` prints."""

import re

from tools.documentation import prose


def page(said):
    """Returns it as Markdown. Declarations begin at the margin, and the text below each is indented."""
    out = ["# Go"]
    declaration, text = [], []

    def end():
        if declaration:
            code = "\n".join(declaration).strip("\n")
            if found := re.match(r"(?:func (?:\([^)]*\) )?|type )(\w+)", code):
                receiver = re.match(r"func \(\w+ \*?(\w+)\)", code)
                out.append("### " + (f"{receiver[1]}." if receiver else "") + found[1])
            out.append(prose.fenced("go", code))
        if any(text):
            out.append(prose.markdown("\n".join(text)))
        declaration.clear()
        text.clear()

    depth = 0
    for it in said.splitlines():
        if re.fullmatch(r"CONSTANTS|VARIABLES|FUNCTIONS|TYPES", it):
            end()
            out.append(f"## {it.capitalize()}")
        elif it.startswith("package "):
            continue
        elif depth > 0 or (it and not it.startswith(" ")):
            if depth == 0 and re.match(r"func|type|const|var|\)|\}", it):
                if not re.match(r"[)}]", it):
                    end()
            if depth == 0 and not re.match(r"func|type|const|var", it):
                text.append(it)
                continue
            declaration.append(it)
            depth += it.count("{") + it.count("(") - it.count("}") - it.count(")")
        elif declaration and not it:
            text.append("")
        else:
            text.append(it.removeprefix("    "))
    end()
    return "\n\n".join(out) + "\n"
