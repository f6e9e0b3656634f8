"""cc_library_and_mutated: a library, and its twin with bugs that a test switches on."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def cc_library_and_mutated(name, mutated_deps = [], mutated_srcs = [], srcs = [], deps = [], testonly = False, **kwargs):
    """The cc_library `name`, and `name`_mutated for tests.

    Args:
      name: of the library; its twin is compiled with WAYBILL_MUTATIONS defined.
      mutated_deps: libraries of this kind; the twin depends on their twins.
      mutated_srcs: sources of the twin only.
      srcs: sources of both.
      deps: of both.
      testonly: of the library; its twin always is.
      **kwargs: of both, as cc_library has them.
    """
    cc_library(
        name = name,
        srcs = srcs,
        deps = deps + mutated_deps,
        testonly = testonly,
        **kwargs
    )
    cc_library(
        name = name + "_mutated",
        testonly = True,
        srcs = srcs + mutated_srcs,
        defines = ["WAYBILL_MUTATIONS"],
        tags = ["no-sanitizer"],
        deps = deps + [dep + "_mutated" for dep in mutated_deps],
        **kwargs
    )
