# SPDX-License-Identifier: Apache-2.0
"""The reference says of each name what the source says, and gives no other meaning to its text."""

from pathlib import Path

import pytest

from tools.documentation import c_reference, go_reference, prose, python_reference

PROSE = [
    # name, text, Markdown
    ("a_paragraph", "One\ntwo.\n\nThree.", "One two.\n\nThree."),
    ("a_list", "Says:\n\n- WAYBILL_OK: it\n  works\n- no", "Says:\n\n- `WAYBILL_OK`: it works\n- no"),
    ("names", "waybill_f() and a_b, WAYBILL_X_*", "`waybill_f()` and a\\_b, `WAYBILL_X_*`"),
    ("no_markup", "[0, n) * 2 < |x|", "\\[0, n) \\* 2 \\< \\|x\\|"),
    ("code_stays", "`a_b` and `*`", "`a_b` and `*`"),
    ("a_drawing", "  a ─┬─ b\n    └─ c", "```text\na ─┬─ b\n  └─ c\n```"),
    ("an_example", ">>> 1 + 1\n2", "```python\n>>> 1 + 1\n2\n```"),
    ("terms", "job, world  Names\n            it.\nx  Is_", "| | |\n|---|---|\n| `job, world` | Names it. |\n| `x` | Is\\_ |"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "markdown"), PROSE, ids=[case[0] for case in PROSE])
def test_prose(name, text, markdown):
    assert prose.markdown(text) == markdown


def test_every_function_of_the_header_has_its_place():
    header = Path("capi/waybill.h").read_text()
    page = c_reference.page(header)
    functions = c_reference.functions(header)
    assert len(functions) > 50
    for function in functions:
        assert any(f"`{function}`" in line for line in page.split("\n") if line[:4] == "### "), (
            function
        )
    assert "WAYBILL_API" not in page.partition("## ")[2].replace("`", "")


HEADER = """\
/* The manual. */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- calls ---- */

/* Says no. [waits]
 *
 * - WAYBILL_OK: never
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_say(int what); /* What. */
/* Kinds. */
enum { WAYBILL_KIND_A = 1, WAYBILL_KIND_B = 2 };
#ifdef __cplusplus
}
#endif
"""

C_PAGE = """\
# C

The manual.

## Calls

### `waybill_say`

Says no. \\[waits\\]

- `WAYBILL_OK`: never

```c
waybill_status_t waybill_say(int what); /* What. */
```

### `WAYBILL_KIND_*`

Kinds.

```c
enum { WAYBILL_KIND_A = 1, WAYBILL_KIND_B = 2 };
```
"""


def test_a_header():
    assert c_reference.page(HEADER) == C_PAGE


SOURCES = {
    "waybill/__init__.py": 'from waybill.a import Public\n__all__ = ["Public", "version"]\nversion = 1\n',
    "waybill/a.py": '''
class Public(Base):
    """Does it.

    job  Its name.
    """

    def __init__(self, job: str = "") -> None: ...

    @property
    def open(self) -> bool:
        """Whether it is."""

    def _hidden(self): ...
''',
}

PYTHON_PAGE = """\
# Python

## waybill

### waybill.Public

```python
class Public(job: str='')
```

Does it.

| | |
|---|---|
| `job` | Its name. |

#### Public.open

```python
open: bool
```

Whether it is.
"""


def test_a_python_package(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert python_reference.page(tmp_path, "Python", ["waybill"]) == PYTHON_PAGE


GO = """\
package waybill // import "x"

Package waybill does it.

FUNCTIONS

func Version() string
    Version returns *it*.

TYPES

type T struct {
	A int // One.

	B int
}
    T is one.

func (t *T) Close()
    Close ends it.
"""

GO_PAGE = """\
# Go

Package waybill does it.

## Functions

### Version

```go
func Version() string
```

Version returns \\*it\\*.

## Types

### T

```go
type T struct {
	A int // One.

	B int
}
```

T is one.

### T.Close

```go
func (t *T) Close()
```

Close ends it.
"""


def test_a_go_module():
    assert go_reference.page(GO) == GO_PAGE
