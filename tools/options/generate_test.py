# SPDX-License-Identifier: Apache-2.0
"""What is generated from a description of options; that the checkout has it is a matter of tools/format."""

import re
from pathlib import Path

import pytest

from tools.options import generate, languages
from tools.options.description import read

ROOT = Path("WORKSPACE").resolve().parent
DESCRIPTION = (ROOT / generate.DESCRIPTION).read_text(encoding="utf-8")

POD = """
[rank.pod]
doc = "The name of this rank's pod. {on}: no word of this sentence is special."
default = "none"
flag = { into = "pod", env = "WAYBILL_POD" }
"""


def written(path, structs):
    """Returns the text of a file as it is generated of these structs."""
    return generate.generated(ROOT, structs)[path]


def test_a_new_text_of_ranks_is_in_every_language():
    structs = read(DESCRIPTION + POD)
    before, after = (generate.generated(ROOT, it) for it in (read(DESCRIPTION), structs))
    assert [path for path in after if after[path] != before[path]] == [
        "bindings/go/options.go",
        "bindings/python/waybill/options.cc",
        "bindings/rust/src/options.rs",
        "capi/waybill.h",
        "bindings/python/waybill/_waybill.pyi",
        "bindings/python/waybill/trainer.py",
        "bindings/python/waybill/worker.py",
        "tools/waybill/rank/rank_options.cc",
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("capi/waybill.h", "  const char* pod;\n} waybill_rank_options_t;"),
        ("capi/waybill.h", "pod. 1: no word of this sentence is special. Default: none. */"),
        ("bindings/go/options.go", "special. Default: none.\n\tPod string\n}"),
        ("bindings/go/options.go", "\tc.pod = a.text(o.Pod)\n}"),
        ("bindings/rust/src/options.rs", "    pub pod: String,\n}"),
        ("bindings/rust/src/options.rs", "        c.pod = texts.lend(&self.pod);\n    }"),
        ("bindings/python/waybill/options.cc", "made->c.pod = made->Keep(std::move(pod));"),
        (
            "bindings/python/waybill/trainer.py",
            "    pod            The name of this rank's pod. True:",
        ),
        (
            "bindings/python/waybill/worker.py",
            "    pod             The name of this rank's pod. True:",
        ),
        ("bindings/python/waybill/worker.py", '        pod: str = "",\n'),
        ("bindings/python/waybill/worker.py", "            pod=pod,\n"),
        (
            "tools/waybill/rank/rank_options.cc",
            '"name of this rank\'s pod; default: none")->envname(',
        ),
    ],
)
def test_the_text_is_declared_documented_and_passed_on(path, expected):
    assert expected in written(path, read(DESCRIPTION + POD))


def test_what_is_written_twice_is_what_was_written_once():
    structs = read(DESCRIPTION)
    once = generate.generated(ROOT, structs)
    assert once == generate.generated(ROOT, structs)
    for path, text in once.items():
        assert "begin generated" not in text or text.count("end generated") > 0, path


@pytest.mark.parametrize(
    "option", read(DESCRIPTION)["rank"].values("python"), ids=lambda it: it.field
)
def test_every_option_of_ranks_is_documented_wherever_it_is(option):
    for language in ("c", "go", "python", "rust"):
        assert re.match(r"[A-Z].*\.$", option.documentation(language)), language


def test_a_place_that_is_not_there_is_named():
    with pytest.raises(LookupError, match="struct waybill_rank_options_t: found 0 times"):
        generate.in_header("", [read(DESCRIPTION)["rank"]])


def test_an_index_counts_from_0_where_it_is_optional():
    gpu = next(it for it in read(DESCRIPTION)["worker"].options if it.field == "gpu")
    assert gpu.documentation("rust").startswith("The index of a GPU. ")
    assert gpu.documentation("go").startswith("The index of a GPU, plus 1. ")
    rank, worker = read(DESCRIPTION)["rank"], read(DESCRIPTION)["worker"]
    arguments = languages.python_arguments([rank, worker], "")
    assert "gid_index=0 if gid_index is None else gid_index + 1," in arguments
