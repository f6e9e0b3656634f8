# SPDX-License-Identifier: Apache-2.0
"""Writes what the languages have of the options that capi/options.toml describes.

Three files are generated as a whole. In others, the text between the comments

    begin generated from capi/options.toml: WRITER of STRUCT and STRUCT
    end generated

is, and the structs of waybill.h and the lists of options in docstrings, which have no such comments.
"""

import re

from tools.options import languages
from tools.options.description import read

DESCRIPTION = "capi/options.toml"
HEADER = "capi/waybill.h"

WHOLE = {
    "bindings/go/options.go": languages.go_file,
    "bindings/python/waybill/options.cc": languages.native_file,
    "bindings/rust/src/options.rs": languages.rust_file,
}

WRITERS = {
    "arguments": languages.python_arguments,
    "flags": languages.flags,
    "parameters": languages.python_parameters,
    "passed": languages.python_passed,
    "stubs": languages.python_stubs,
}

PYTHON = "bindings/python/waybill"
IN_PART = [
    f"{PYTHON}/_waybill.pyi",
    f"{PYTHON}/controller.py",
    f"{PYTHON}/trainer.py",
    f"{PYTHON}/worker.py",
    "tools/waybill/controller/controller_command.cc",
    "tools/waybill/rank/fabric_options.cc",
    "tools/waybill/rank/rank_options.cc",
    "tools/waybill/rank/trainer_command.cc",
    "tools/waybill/rank/worker_command.cc",
]

# The docstrings with lists of options, by the definitions that they follow.
DOCSTRINGS = {
    f"{PYTHON}/controller.py": {"class Controller:": ["controller"]},
    f"{PYTHON}/trainer.py": {
        "class Trainer(": ["rank", "trainer"],
        "def publish_async(": ["publish"],
    },
    f"{PYTHON}/worker.py": {"class Worker(": ["rank", "worker"]},
}

_REGION = re.compile(
    rf"^( *)((?:#|//) begin generated from {DESCRIPTION}: (\w+) of (.+)\n)(?:.*\n)*?( *(?:#|//) end generated\n)",
    re.MULTILINE,
)


def _replaced(text, pattern, new, what):
    """Returns the text with the one match of a pattern replaced by lines."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if len(found) != 1:
        raise LookupError(f"{what}: found {len(found)} times, expected once")
    (start, end) = found[0].span("old")
    return text[:start] + "".join(f"{line}\n" for line in new) + text[end:]


def in_header(text, structs):
    for struct in structs:
        pattern = (
            rf"(?P<old>^typedef struct waybill_{struct.name}_options \{{[^}}]*\}} {struct.c_type};\n"
            rf"#define WAYBILL_{struct.name.upper()}_OPTIONS_INIT(?:.*\\\n)*.*\n)"
        )
        text = _replaced(text, pattern, languages.c_struct(struct), f"struct {struct.c_type}")
    return text


def _regions(text, structs, path):
    def region(found):
        indent, begin, writer, of, end = found.groups()
        named = [structs[name] for name in re.findall(r"\w+", of) if name in structs]
        if writer == "flags":
            named = structs.values()
        lines = WRITERS[writer](named, of)
        body = "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)
        return indent + begin + body + end

    text, count = _REGION.subn(region, text)
    if count == 0:
        raise LookupError(f"{path}: has no text between `begin generated` and `end generated`")
    return text


def _docstrings(text, structs, path):
    for definition, names in DOCSTRINGS.get(path, {}).items():
        named = [structs[name] for name in names]
        first = named[0].values("python")[0].name("python")
        indent = " " * (4 if definition.startswith("class") else 8)
        pattern = (
            rf'{re.escape(definition)}(?:.*\n)*?{indent}"""(?:.*\n)*?'
            rf'(?P<old>{indent}{first}  .*\n(?:.+\n)*?)(?=\n|{indent}""")'
        )
        lines = languages.python_docstring(named, indent)
        text = _replaced(text, pattern, lines, f"{path}: docstring of {definition}")
    return text


def description(root):
    """Returns the structs that the checkout describes."""
    return read((root / DESCRIPTION).read_text(encoding="utf-8"))


def generated(root, structs):
    """Returns {path: text} of every file with generated text, as it should be before it is formatted."""
    texts = {path: "\n".join(write(structs.values())) + "\n" for path, write in WHOLE.items()}
    texts[HEADER] = in_header((root / HEADER).read_text(encoding="utf-8"), structs.values())
    for path in IN_PART:
        text = _regions((root / path).read_text(encoding="utf-8"), structs, path)
        texts[path] = _docstrings(text, structs, path)
    return texts
