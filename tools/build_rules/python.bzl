# SPDX-License-Identifier: Apache-2.0
"""pytest_test, mypy_test, and extension modules."""

load("@rules_cc//cc:defs.bzl", "cc_binary")
load("@rules_python//python:defs.bzl", "py_library", "py_test")

def pytest_test(name, srcs = None, deps = [], args = [], tags = [], size = "small", **kwargs):
    """A test that runs pytest on srcs.

    Args:
      name: the test's.
      srcs: files with test functions; NAME.py unless given.
      deps: py_library targets that they import.
      args: more arguments for pytest.
      tags: more tags; the interpreter is not instrumented, so it never runs under a sanitizer.
      size: Bazel's.
      **kwargs: py_test's others.
    """
    if srcs == None:
        srcs = [name + ".py"]
    py_test(
        name = name,
        size = size,
        srcs = srcs + ["//tools/build_rules:pytest_main.py"],
        args = ["$(rootpath %s)" % s for s in srcs] + args,
        main = "//tools/build_rules:pytest_main.py",
        tags = tags + ["no-sanitizer"],
        deps = deps,
        **kwargs
    )

def abi3_extension(name, srcs, deps = [], copts = [], data = [], **kwargs):
    """The extension module `name` from C++, as a py_library, for CPython 3.10 and all later ones.

    Args:
      name: the module's, as in WAYBILL_ABI3_MODULE.
      srcs: its sources and private headers.
      deps: cc_library targets; //bindings/python/abi3 comes by itself.
      copts: more options. Nothing but the module's entry point is visible from outside.
      data: what goes beside it: its .pyi.
      **kwargs: py_library's others.
    """
    module = name + ".abi3.so"
    cc_binary(
        name = module,
        testonly = kwargs.get("testonly", False),
        srcs = srcs,
        copts = ["-fvisibility=hidden"] + copts,
        linkshared = True,
        # The interpreter that loads it is not instrumented.
        tags = ["no-sanitizer"],
        visibility = ["//visibility:private"],
        deps = deps + ["//bindings/python/abi3"],
    )
    py_library(
        name = name,
        data = [":" + module] + data,
        **kwargs
    )

def mypy_test(name, packages, deps, tags = [], **kwargs):
    """`mypy --strict` on packages, as one test case.

    Args:
      name: the test's.
      packages: names as in an import; their modules are those that deps bring.
      deps: py_library targets, .pyi files among their data.
      tags: more tags.
      **kwargs: py_test's others.
    """
    py_test(
        name = name,
        srcs = ["//tools/build_rules:mypy_main.py"],
        args = packages,
        main = "//tools/build_rules:mypy_main.py",
        tags = tags + ["no-sanitizer"],
        deps = deps,
        **kwargs
    )
