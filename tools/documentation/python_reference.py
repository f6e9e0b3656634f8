# SPDX-License-Identifier: Apache-2.0
"""The reference of a Python package, from its sources alone: nothing is imported."""

import ast
from pathlib import Path

from tools.documentation import prose


def _file(root, module):
    base = Path(root, *module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _tree(root, module):
    file = _file(root, module)
    if not file.exists():
        file = file.with_suffix(".pyi")  # An extension module.
    return ast.parse(file.read_text(encoding="utf-8"))


def _list(tree, name):
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]:
            return ast.literal_eval(node.value)
    return None


def public_names(root, module):
    """Returns the names in a module's __all__, or without that its own public classes and functions."""
    tree = _tree(root, module)
    named = _list(tree, "__all__")
    if named is not None:
        return named
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [it.name for it in tree.body if isinstance(it, kinds) and not it.name.startswith("_")]


def definition(root, module, name):
    """Returns the class or function that a name of a module is, wherever it is defined; None if it is a value."""
    tree = _tree(root, module)
    for node in tree.body:
        if getattr(node, "name", None) == name:
            return node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("waybill"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(root, node.module, alias.name)
    return None


def _decorators(node):
    return {ast.unparse(it) for it in node.decorator_list}


def _signature(node, name=None, drop_first=False):
    arguments = node.args
    if drop_first:
        first = arguments.posonlyargs or arguments.args
        del first[0]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and name is None else ""
    line = f"{name or node.name}({ast.unparse(arguments)}){returns}"
    if len(line) <= 100:
        return line
    # An argument a line.
    pieces, depth, start = [], 0, 0
    text = ast.unparse(arguments)
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            pieces.append(text[start:i].strip())
            start = i + 1
    pieces.append(text[start:].strip())
    return f"{name or node.name}(\n" + "".join(f"    {it},\n" for it in pieces) + f"){returns}"


def _docstring(node):
    text = ast.get_docstring(node)
    return [prose.markdown(text)] if text else []


def _class(node, out):
    makes = next((it for it in node.body if getattr(it, "name", None) == "__init__"), None)
    fields = [
        f"    {ast.unparse(it)}"
        for it in node.body
        if isinstance(it, ast.AnnAssign) and not ast.unparse(it.target).startswith("_")
    ]
    bases = [ast.unparse(it) for it in node.bases]
    if any(base.endswith("Enum") for base in bases):
        fields = [f"    {ast.unparse(it)}" for it in node.body if isinstance(it, ast.Assign)]
    shown = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    if makes:
        shown = f"class {_signature(makes, node.name, drop_first=True)}"
    elif fields:
        shown += ":\n" + "\n".join(fields)
    out.append(prose.fenced("python", shown))
    out.extend(_docstring(node))
    for it in node.body:
        if not isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef)) or it.name.startswith("_"):
            continue
        how = _decorators(it)
        if any(name.endswith(".setter") or name.endswith("overload") for name in how):
            continue
        if "property" in how:
            returns = f": {ast.unparse(it.returns)}" if it.returns else ""
            shown = f"{it.name}{returns}"
        else:
            prefix = "async " if isinstance(it, ast.AsyncFunctionDef) else ""
            shown = prefix + _signature(it, drop_first="staticmethod" not in how)
        out.append(f"#### {node.name}.{it.name}")
        out.append(prose.fenced("python", shown))
        out.extend(_docstring(it))


def page(root, title, modules):
    """Returns the reference of these modules as Markdown."""
    out = [f"# {title}"]
    for module in modules:
        out.append(f"## {module}")
        out.extend(_docstring(_tree(root, module)))
        for name in public_names(root, module):
            node = definition(root, module, name)
            if node is None:
                continue
            out.append(f"### {module}.{name}")
            if isinstance(node, ast.ClassDef):
                _class(node, out)
            else:
                out.append(prose.fenced("python", _signature(node)))
                out.extend(_docstring(node))
    return "\n\n".join(out) + "\n"
