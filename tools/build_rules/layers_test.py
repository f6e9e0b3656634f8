# SPDX-License-Identifier: Apache-2.0
import layers
import pytest

SOURCE = '#include <vector>\n#include "absl/status/status.h"\n#include "core/a.h"\n  # include "core/b.h"\n'


def test_only_includes_of_this_repository_count():
    assert layers.wrong_includes(SOURCE, {"core/a.h", "core/b.h"}) == []
    assert layers.wrong_includes(SOURCE, {"core/a.h"}) == ["core/b.h"]


def test_includes_on_a_condition_are_not_checked():
    guarded = '#ifndef A_H_\n#define A_H_\n#include "core/a.h"\n#ifdef B\n#include "core/b.h"\n#endif\n#include "core/c.h"\n#endif\n'
    assert layers.wrong_includes(guarded, set()) == ["core/a.h", "core/c.h"]


def test_an_error_names_the_source_the_header_and_the_target(tmp_path):
    source, headers, stamp = tmp_path / "c.cc", tmp_path / "headers", tmp_path / "stamp"
    source.write_text(SOURCE)
    headers.write_text("core/b.h\n")
    with pytest.raises(
        SystemExit, match="c.cc: includes core/a.h, which no direct dependency of //core:c has"
    ):
        layers.main("//core:c", str(stamp), str(headers), str(source))
    assert not stamp.exists()
    headers.write_text("core/a.h\ncore/b.h\n")
    layers.main("//core:c", str(stamp), str(headers), str(source))
    assert stamp.exists()
