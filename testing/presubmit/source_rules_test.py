# SPDX-License-Identifier: Apache-2.0
"""Each rule on sources, on a text that breaks it and on one that does not."""

import pytest

from testing.presubmit import source_rules

NAP = "sleep"  # The rule reads this file too.

# name, rule, path, text, how many complaints
CASES = [
    ("verbs_in_place", "confined_names", "core/fabric/verbs/qp.cc", "ibv_post_send(qp);", 0),
    ("verbs_in_the_fake", "confined_names", "testing/fake_verbs/v.cc", "ibv_qp qp;", 0),
    ("verbs_elsewhere", "confined_names", "core/engine/post.cc", "\nibv_post_send(qp);", 1),
    ("verbs_header", "confined_names", "tools/d.cc", "#include <infiniband/verbs.h>", 1),
    ("verbs_in_a_comment", "confined_names", "core/fabric/f.h", "// As ibv_post_send does.", 0),
    ("verbs_in_a_long_comment", "confined_names", "capi/w.h", "/* As\n * ibv_x does. */", 0),
    ("verbs_in_python", "confined_names", "tools/doctor.py", "ibv_devinfo", 0),
    ("cuda_in_place", "confined_names", "core/device/device.cc", "cuMemAlloc(&p, 1);", 0),
    ("cuda_launch", "confined_names", "kernels/cuda/kernel.cc", "cuLaunchKernel(k);", 0),
    ("cuda_in_the_fake", "confined_names", "testing/fake_cuda/driver.cc", "CU_MEMORYTYPE_HOST", 0),
    ("cuda_in_what_runs_on_gpus", "confined_names", "testing/gpu/s.cc", "cuMemAlloc(&p, 1);", 0),
    ("cuda_driver_elsewhere", "confined_names", "core/memory/arena.cc", "cuMemAlloc(&p, 1);", 1),
    ("cuda_runtime_elsewhere", "confined_names", "core/stage/s.cc", "cudaMalloc(&p, 1);", 1),
    ("hip_elsewhere", "confined_names", "core/stage/s.cc", "hipMalloc(&p, 1);", 1),
    ("a_word_with_hip", "confined_names", "core/stage/s.cc", "ship(); hip.x; kHip;", 0),
    ("a_word_with_cu", "confined_names", "core/stage/s.cc", "current = cut; kCuda;", 0),
    ("grpc_in_a_header", "rpc_in_headers", "core/plan/p.h", "#include <grpcpp/grpcpp.h>", 1),
    ("proto_in_a_header", "rpc_in_headers", "core/tensor/m.h", '#include "core/t/m.pb.h"', 1),
    ("proto_in_a_source", "rpc_in_headers", "core/tensor/m.cc", '#include "core/t/m.pb.h"', 0),
    ("grpc_in_control", "rpc_in_headers", "core/control/c.h", "#include <grpcpp/grpcpp.h>", 0),
    ("a_clock_in_protocol", "impure_names", "core/protocol/p.cc", "absl::Now();", 1),
    ("a_lock_in_protocol", "impure_names", "core/protocol/p.h", "#include <mutex>", 1),
    ("an_engine_in_protocol", "impure_names", "core/protocol/p.h", '#include "core/engine/e.h"', 1),
    ("time_in_protocol", "impure_names", "core/protocol/p.h", '#include "absl/time/time.h"', 0),
    ("a_clock_in_control", "impure_names", "core/control/c.cc", "SteadyNow();", 0),
    ("a_steady_clock", "impure_names", "core/protocol/p.cc", "SteadyNow();", 1),
    ("a_wall_clock", "deadlines_by_the_time_of_day", "core/a.cc", "f(absl::Now);", 1),
    ("a_wall_clock_of_c", "deadlines_by_the_time_of_day", "capi/a.c", "x = time(NULL);", 1),
    (
        "a_chrono_clock",
        "deadlines_by_the_time_of_day",
        "a.h",
        "std::chrono::system_clock::now()",
        1,
    ),
    ("a_wait_of_absl", "deadlines_by_the_time_of_day", "a.cc", "cv.WaitWithDeadline(&m, d);", 1),
    ("a_steady_wait", "deadlines_by_the_time_of_day", "a.cc", "SteadyNow(); Wait(d);", 0),
    ("a_comment", "deadlines_by_the_time_of_day", "a.cc", "// As absl::Now().", 0),
    ("a_bug_in_the_product", "planted_bugs", "core/a.cc", "if (Planted(Bug::kX)) return;", 1),
    ("a_mutation", "planted_bugs", "core/a.h", "if (Mutated(Mutation::kX)) return;", 1),
    ("a_twin_with_bugs", "planted_bugs", "core/a/BUILD", 'deps = [":rounds_mutated"]', 1),
    ("a_bug_in_a_copy", "planted_bugs", "testing/a.h", "if (Planted(Bug::kX)) return;", 0),
    ("a_readme_of_bugs", "planted_bugs", "core/README.md", "testing/simulation/planted", 0),
    ("a_vague_file", "vague_names", "core/plan/plan_utils.cc", "", 1),
    ("a_vague_folder", "vague_names", "core/common/status.cc", "", 1),
    ("a_clear_file", "vague_names", "core/plan/uncommon_route.cc", "", 0),
    ("cc_sleep", "sleeps_in_tests", "core/a_test.cc", f"std::this_thread::{NAP}_for(1s);", 1),
    ("absl_sleep", "sleeps_in_tests", "testing/a.cc", f"absl::{NAP.title()}For(d);", 1),
    ("python_sleep", "sleeps_in_tests", "testing/a.py", f"time.{NAP}(1)", 1),
    ("go_sleep", "sleeps_in_tests", "bindings/go/a_test.go", f"time.{NAP.title()}(1)", 1),
    ("rust_sleep", "sleeps_in_tests", "testing/a.rs", f"std::thread::{NAP}(d);", 1),
    ("shell_sleep", "sleeps_in_tests", "testing/a_test.sh", f"start &\n{NAP} 1", 1),
    ("the_product_may", "sleeps_in_tests", "core/a.cc", f"u{NAP}(1); {NAP}_for(1s);", 0),
]


@pytest.mark.parametrize(
    ("rule", "path", "text", "count"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_rule(rule, path, text, count):
    assert len(getattr(source_rules, rule)(path, text)) == count


def test_names_the_line():
    found = source_rules.confined_names("core/engine/post.cc", "/* one\n */\nibv_post_send(qp);")
    assert found[0].startswith("core/engine/post.cc:3: names verbs; ")


TYPE = "namespace waybill {\nstruct Chunk {\n  int n;\n};\n}  // namespace waybill\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (TYPE, 2),
        (TYPE.replace("struct Chunk {", "class Chunk final : public Base {"), 2),
        (TYPE.replace("struct Chunk {", "enum class Chunk : uint8_t {"), 2),
        (TYPE.replace("struct Chunk {", "template <typename T>\nstruct Chunk {"), 2),
        (TYPE.replace("struct Chunk {", "struct alignas(64) Chunk {"), 2),
        (TYPE.replace("struct Chunk {\n  int n;\n}", "struct Chunk"), 0),
        (TYPE.replace("struct Chunk {", "struct Chunk::Part {"), 0),
        (TYPE.replace("namespace waybill {", "namespace {"), 0),
        (TYPE.replace("namespace waybill {", "namespace waybill {\nnamespace {"), 0),
        (TYPE.replace("namespace waybill {", "namespace waybill::tcp {"), 0),
    ],
    ids=[
        "the_same_type",
        "a_class",
        "an_enum",
        "a_template",
        "an_aligned_type",
        "a_declaration",
        "a_type_within_it",
        "a_type_without_linkage",
        "a_type_in_a_namespace_without_a_name",
        "a_type_of_another_namespace",
    ],
)
def test_a_type_has_one_definition(text, count):
    found = source_rules.types_defined_twice({"core/a.h": TYPE, "core/b.cc": text})
    assert len(found) == count
    if found:
        assert found[0].startswith("core/a.h:2: waybill::Chunk is also defined in core/b.cc")


def test_one_source_may_choose_between_two_definitions():
    either = f"#if WIDE\n{TYPE}#else\n{TYPE}#endif\n"
    assert not source_rules.types_defined_twice({"core/a.h": either})
