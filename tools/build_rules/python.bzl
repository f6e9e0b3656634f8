"""pytest_test: a test that runs pytest."""

load("@rules_python//python:defs.bzl", "py_test")

def pytest_test(name, srcs, deps = [], args = [], tags = [], **kwargs):
    """A test that runs pytest on srcs.

    Args:
      name: the test's.
      srcs: files with test functions.
      deps: py_library targets that they import.
      args: more arguments for pytest.
      tags: more tags; the interpreter is not instrumented, so it never runs under a sanitizer.
      **kwargs: py_test's others.
    """
    py_test(
        name = name,
        srcs = srcs + ["//tools/build_rules:pytest_main.py"],
        args = ["$(rootpath %s)" % s for s in srcs] + args,
        main = "//tools/build_rules:pytest_main.py",
        tags = tags + ["no-sanitizer"],
        deps = deps,
        **kwargs
    )
