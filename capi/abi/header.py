# SPDX-License-Identifier: Apache-2.0
"""What capi/waybill.h declares, read from its text."""

import re
import subprocess


def _without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def functions(text):
    """Names of all functions, sorted."""
    text = re.sub(r"typedef .*?;", "", _without_comments(text), flags=re.S)
    return sorted(set(re.findall(r"\b(waybill_\w+)\(", text)))


def structs(text):
    """{type: [field, ...]} of all structs with fields, in their order."""
    found = {}
    pattern = r"typedef struct \w+ \{(.*?)\} (\w+);"
    for body, name in re.findall(pattern, _without_comments(text), flags=re.S):
        declarations = [d.strip() for d in body.split(";") if d.strip()]
        found[name] = [re.search(r"(\w+)(?:\[\w+\])?$", d).group(1) for d in declarations]
    return found


def constants(text):
    """Names of all enumerators and of the macros that are numbers, in their order."""
    text = _without_comments(text)
    names = []
    for body in re.findall(r"\benum \{(.*?)\};", text, flags=re.S):
        names += re.findall(r"(WAYBILL_\w+)\s*=", body)
    return names + re.findall(r"#define (WAYBILL_\w+) \d+$", text, flags=re.M)


def layout_program(text):
    """A C program that prints sizes, offsets and constants, one a line."""
    lines = []
    for name, fields in structs(text).items():
        lines.append(f'printf("{name} size %zu\\n", sizeof({name}));')
        lines += [
            f'printf("{name}.{field} at %zu, size %zu\\n", offsetof({name}, {field}), '
            f"sizeof((({name}*)0)->{field}));"
            for field in fields
        ]
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in constants(text)]
    body = "\n  ".join(lines)
    return (
        '#include <stddef.h>\n#include <stdio.h>\n#include "capi/waybill.h"\n'
        f"int main(void) {{\n  {body}\n  return 0;\n}}\n"
    )


def layout(text, folder):
    """What that program prints; compiled in `folder`."""
    copy, source, program = folder / "capi/waybill.h", folder / "layout.c", folder / "layout"
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(text)
    source.write_text(layout_program(text))
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run(["gcc", *strict, f"-I{folder}", source, "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def with_one_more_field(text):
    """The header of a later release: every options struct and every output has a field more."""
    return re.sub(r"(\n)(\} waybill_\w+_t;)", r"\1  uint64_t field_of_a_later_release;\n\2", text)
