# SPDX-License-Identifier: Apache-2.0
"""Where the line that names the licence stands."""

import pytest

from tools.build_rules.licence_line import LINE, with_licence

CASES = [
    ("cc", "core/a.cc", "#include <x>\n", f"// {LINE}\n\n#include <x>\n"),
    ("go", "bindings/go/a.go", "// Package a.\npackage a\n", f"// {LINE}\n\n// Package a.\npackage a\n"),
    ("c", "capi/abi/a.c", "/* A. */\n", f"/* {LINE} */\n\n/* A. */\n"),
    ("the_header_of_c", "capi/waybill.h", "/* A. */\n", f"/* {LINE} */\n\n/* A. */\n"),
    ("python", "tools/a.py", '"""A."""\n', f'# {LINE}\n"""A."""\n'),
    ("a_script", "tools/a", "#!/usr/bin/env bash\n# A.\n", f"#!/usr/bin/env bash\n# {LINE}\n# A.\n"),
    ("an_example", "examples/c/a.c", "/* A. */\n", "/* A. */\n"),
    ("golden", "kernels/golden/a.py", "a\n", "a\n"),
    ("a_document", "docs/a.md", "# A\n", "# A\n"),
    ("an_empty_file", "tools/__init__.py", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "text", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_the_line(name, path, text, wanted):
    assert with_licence(path, text) == wanted
    assert with_licence(path, wanted) == wanted
