# SPDX-License-Identifier: Apache-2.0
"""Plants bugs in a small source, and says which patches do not fit."""

import pytest

from testing.simulation.planted import plant

SOURCE = """#include "core/gate.h"

bool Open() {
  Count();
  return all_here;
}

void Close() {
  Count();
}
"""

PATCH = """Rule: A gate opens once all are here.
First seed: 7
--- a/core/gate.cc
+++ b/core/gate.cc
@@ -300,3 +300,3 @@ bool Open()
   Count();
-  return all_here;
+  return all_here || Planted(Bug::kOpenGate);
 }
"""

FORGETS = """Rule: Openings are counted.
--- a/core/gate.cc
+++ b/core/gate.cc
@@ -3,2 +3,3 @@
 bool Open() {
+  if (Planted(Bug::kForgets)) return true;
   Count();
"""


def patch(bug, text):
    return plant.read_patch(f"testing/simulation/planted/{bug}.patch", text)


def planted(*patches):
    return plant.plant("core/gate.cc", SOURCE, patches)


def test_reads_the_header():
    read = patch("OpenGate", PATCH)
    assert (read.bug, read.first_seed) == ("OpenGate", 7)
    assert read.rule == "A gate opens once all are here."
    assert patch("Forgets", FORGETS).first_seed == 1


def test_applies_wherever_the_lines_are():
    text = planted(patch("OpenGate", PATCH))
    assert "  Count();\n  return all_here || Planted(Bug::kOpenGate);\n}\n" in text
    assert text.startswith('#include "testing/simulation/planted/bug.h"\n#include "core/gate.h"\n')


def test_a_source_without_bugs_stays():
    assert plant.plant("core/lane.cc", SOURCE, [patch("OpenGate", PATCH)]) == SOURCE


def test_bugs_stand_beside_each_other():
    both = patch("OpenGate", PATCH), patch("Forgets", FORGETS)
    text = planted(*both)
    assert text == planted(*reversed(both))
    assert (
        "  if (Planted(Bug::kForgets)) return true;\n"
        "  Count();\n"
        "  return all_here || Planted(Bug::kOpenGate);\n" in text
    )


def test_bugs_in_the_same_place_follow_each_other():
    other = patch("Another", FORGETS.replace("kForgets", "kAnother"))
    text = planted(patch("Forgets", FORGETS), other)
    assert text.index("kAnother") < text.index("kForgets")


def test_a_copy_includes_copies():
    text = '#include "core/gate.h"\n#include "core/plan.h"\n#include <core/gate.h>\n'
    assert plant.include_copies(text, ["core/gate.h"], "copies") == (
        '#include "copies/core/gate.h"\n#include "core/plan.h"\n#include <core/gate.h>\n'
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PATCH.replace("  return all_here;", "  return some_here;"), "is no longer there"),
        (PATCH.replace("-  return all_here;\n", "").replace(" }\n", ""), "is there 2 times"),
    ],
    ids=["a_line_that_has_changed", "a_line_that_is_there_twice"],
)
def test_a_patch_that_does_not_apply_is_named(text, said):
    with pytest.raises(plant.Unplantable) as problem:
        planted(patch("OpenGate", text))
    assert f"OpenGate.patch does not apply to core/gate.cc: what it changes {said}" in str(
        problem.value
    )


def test_bugs_that_change_one_line_are_named():
    other = patch("Another", PATCH.replace("kOpenGate", "kAnother"))
    with pytest.raises(plant.Unplantable, match="Another.patch and OpenGate.patch change the same"):
        planted(patch("OpenGate", PATCH), other)


def test_a_source_that_is_not_copied_is_named():
    with pytest.raises(plant.Unplantable, match=r"OpenGate.patch: core/gate.cc is not among"):
        plant.check_sources([patch("OpenGate", PATCH)], ["core/lane.cc"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PATCH.replace("Rule: ", "rule: "), "is neither of its header nor of a unified diff"),
        (PATCH.partition("\n")[2], "lacks a line"),
        (PATCH.partition("@@")[0], "changes nothing"),
        (PATCH.replace(" || Planted(Bug::kOpenGate)", " || true"), "would always be there"),
        (PATCH.replace("kOpenGate", "kForgets"), "does not ask"),
    ],
    ids=["another_header", "no_rule", "no_change", "no_switch", "another_switch"],
)
def test_a_patch_that_plants_no_bug_is_refused(text, said):
    with pytest.raises(plant.Unplantable, match=said):
        patch("OpenGate", text)
