# SPDX-License-Identifier: Apache-2.0
"""unit_test: a cc_test of GoogleTest's, with its main()."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def unit_test(name, srcs = None, deps = [], size = "small", **kwargs):
    """The cc_test `name`, linked with gtest_main.

    Args:
      name: the test's.
      srcs: its sources; NAME.cc unless given.
      deps: what it tests; GoogleTest comes by itself.
      size: Bazel's.
      **kwargs: cc_test's others.
    """
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )
