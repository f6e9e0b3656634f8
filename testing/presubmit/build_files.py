# SPDX-License-Identifier: Apache-2.0
"""Reads BUILD files without Bazel: their syntax is Python's."""

import ast
from dataclasses import dataclass, field


@dataclass
class Target:
    rule: str
    name: str
    line: int
    testonly: bool = False
    labels: list[str] = field(default_factory=list)  # "//package:name" or "//package", as written
    visibility: list[str] = field(default_factory=list)

    @property
    def is_test(self):
        return self.testonly or self.rule.endswith("_test")


def _strings(node):
    return [
        n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]


def _target(call):
    target = Target(rule=call.func.id, name="", line=call.lineno)
    for keyword in call.keywords:
        strings = _strings(keyword.value)
        if keyword.arg == "name":
            target.name = strings[0] if strings else ""
        elif keyword.arg in ("visibility", "default_visibility"):
            target.visibility += strings
        elif keyword.arg == "testonly":
            target.testonly = bool(getattr(keyword.value, "value", True))
        else:
            target.labels += [
                s for s in strings if s.startswith("//") and s != "//conditions:default"
            ]
    return target


def targets(text):
    """Every call of a BUILD file, those inside list comprehensions too, but load()."""
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name)]
    return [_target(call) for call in named if call.func.id not in ("load", "select", "glob")]


def constant(text, name):
    """The value of the constant `name` of a BUILD file."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def package_of(label):
    return label[2:].split(":")[0]
