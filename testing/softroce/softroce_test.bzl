# SPDX-License-Identifier: Apache-2.0
"""softroce_test: test binaries that run beside SoftRoCE devices, in one virtual machine."""

load("@rules_python//python:defs.bzl", "py_test")

def softroce_test(
        name,
        tests,
        nodes = 2,
        nics = 1,
        deadline_s = 60,
        guest_options = [],
        size = "medium",
        tags = [],
        **kwargs):
    """Boots one guest and runs each of `tests` there, one after the other.

    A test sees the devices of each node in WAYBILL_RXE_NODES ("rxe1,rxe2;rxe3,rxe4": two nodes with two
    each), and the network is whole when it begins. README.md says what it may do to it.

    Args:
      name: the test's. --config=no-softroce skips it.
      tests: testonly cc_binary targets with gtest_main, or sh_test, py_test and cc_test targets tagged
        "manual" (so that //... doesn't run them on this machine).
      nodes: how many there are.
      nics: how many devices each of them has.
      deadline_s: how long each of `tests` may take.
      guest_options: more for `rxe_guest run`, such as "--icount=0".
      size: Bazel's, for all of `tests` and about ten seconds of booting.
      tags: more tags. The binaries run under the sanitizers as well.
      **kwargs: py_test's others.
    """
    py_test(
        name = name,
        size = size,
        srcs = ["//testing/softroce:softroce_main.py"],
        args = select({
            "//testing/softroce:off": ["--skip='no SoftRoCE: --config=no-softroce'"],
            "//conditions:default": [],
        }) + [
            "--nodes=%d" % nodes,
            "--nics=%d" % nics,
            "--deadline=%d" % deadline_s,
        ] + ["--guest-option=" + option for option in guest_options] + [
            "$(rootpath %s)" % test
            for test in tests
        ],
        data = tests + ["//testing/softroce:guest"],
        main = "//testing/softroce:softroce_main.py",
        # Not sandboxed: the guest sees this machine's files. Alone: it takes all of its processors.
        tags = tags + [
            "exclusive",
            "local",
            "softroce",
        ],
        deps = ["//testing/softroce:test_report"],
        **kwargs
    )
