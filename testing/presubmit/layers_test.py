# SPDX-License-Identifier: Apache-2.0
"""The layer rule, on trees with a violation planted."""

import pytest

from testing.presubmit.layers import layer_violations

ROOT = """
LAYERS = [
    {"base": ["//core/base/..."], "kernels": ["//kernels/..."]},
    {"fabric": ["//core/fabric"], "tensor": ["//core/tensor/..."]},
    {"fabrics": ["//core/fabric/tcp/...", "//core/fabric/local/..."], "plan": ["//core/plan/..."]},
    {"capi": ["//capi/..."]},
]
"""


def uses(label, rule="cc_library", more=""):
    return f'{rule}(name = "it", deps = ["{label}"], {more})'


# name, package, its BUILD file, part of what is said; None where there is nothing to say
CASES = [
    ("a_lower_layer", "core/plan", uses("//core/tensor:box"), None),
    ("two_layers_down", "core/plan", uses("//kernels:copy"), None),
    ("its_own_subpackage", "kernels/cuda", uses("//kernels:copy"), None),
    ("an_external_library", "kernels", uses("@highway//:hwy"), None),
    ("a_higher_layer", "core/tensor", uses("//core/plan:planner"), "layer 1 (tensor)"),
    ("a_sibling", "kernels", uses("//core/base:status"), "layer 0 (kernels)"),
    ("its_own_seam", "core/fabric/tcp", uses("//core/fabric:fabric"), None),
    ("another_network", "core/fabric/tcp", uses("//core/fabric/local:ring"), "layer 2 (fabrics)"),
    ("the_seam_its_network", "core/fabric", uses("//core/fabric/tcp:tcp"), "layer 1 (fabric)"),
    ("a_test_the_fakes", "core/plan", uses("//testing/fakes:clock", "cc_test"), None),
    (
        "a_testonly_library_the_fakes",
        "core/plan",
        uses("//testing/fakes:clock", more="testonly = True"),
        None,
    ),
    ("the_product_the_fakes", "core/plan", uses("//testing/fakes:clock"), "only tests"),
    ("a_fake_the_top", "testing/fakes", uses("//capi:waybill"), None),
    ("a_binding_the_abi", "bindings/go", uses("//capi:waybill"), None),
    ("a_binding_the_core", "bindings/go", uses("//core/plan:planner"), "//capi only"),
    ("a_wheel_a_program", "bindings/python", uses("//tools/waybill", "py_wheel"), None),
    ("a_wheels_test_a_program", "bindings/python", uses("//tools/waybill", "pytest_test"), None),
    ("a_bindings_test_an_example", "bindings/go", uses("//examples/go:ping", "go_test"), None),
    ("an_example_the_abi", "examples/c", uses("//capi/dist:sdk"), None),
    ("an_example_the_core", "examples/c", uses("//core/plan:planner"), "no //core"),
    ("a_binding_a_tool", "bindings/go", uses("//tools/check:check_held"), "//capi only"),
    ("a_package_of_no_layer", "core/novel", uses("@highway//:hwy"), "in no row"),
    (
        "an_edge_in_a_comprehension",
        "core/tensor",
        '[cc_library(name = n, deps = ["//core/plan:" + n]) for n in ["a"]]',
        "layer 1 (tensor)",
    ),
    (
        "its_own_group",
        "core/plan",
        'package(default_visibility = ["//:may_use_plan"])',
        None,
    ),
    (
        "another_group",
        "core/plan",
        'package(default_visibility = ["//:may_use_base"])',
        "visible to //:may_use_base",
    ),
    (
        "the_public",
        "core/plan",
        'cc_library(name = "it", visibility = ["//visibility:public"])',
        "visible to //visibility:public",
    ),
]


@pytest.mark.parametrize(
    ("package", "text", "said"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_edge(package, text, said):
    found = layer_violations({"BUILD": ROOT, f"{package}/BUILD": text})
    if said is None:
        assert not found
    else:
        assert len(found) == 1
        assert said in found[0]
        assert found[0].startswith(f"{package}/BUILD")


def test_names_both_ends_of_the_edge():
    text = "\n" + uses("//core/plan:planner")
    (found,) = layer_violations({"BUILD": ROOT, "core/tensor/BUILD": text})
    assert found.startswith("core/tensor/BUILD:2: //core/tensor:it -> //core/plan:planner: ")
