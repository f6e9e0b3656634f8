# SPDX-License-Identifier: Apache-2.0
"""Tests that one target never comes to depend on another, or on anything of a package."""

load("@rules_shell//shell:sh_test.bzl", "sh_test")

def assert_no_dependency(name, target, dependency):
    """Fails, showing a path between them, where `target` depends on `dependency`.

    Args:
      name: the test's.
      target: what must not depend.
      dependency: on what, directly or through others.
    """
    _assert_no_path(name, "somepath(%s, %s)" % (target, dependency), [target, dependency])

def assert_no_package(name, target, packages):
    """Fails, showing a path, where `target` depends on any target of `packages` or below them.

    Args:
      name: the test's.
      target: what must not depend.
      packages: on what, directly or through others: "//core/plan".
    """
    _assert_no_path(name, path_into(target, packages), [target])

def path_into(target, packages):
    """The query for a path from `target` to anything of `packages` or below them."""
    pattern = "^(%s)[:/]" % "|".join(packages)
    return "somepath(%s, filter('%s', deps(%s)))" % (target, pattern, target)

def _assert_no_path(name, expression, scope):
    native.genquery(
        name = name + "_path",
        testonly = True,
        expression = expression,
        scope = scope,
    )
    sh_test(
        name = name,
        size = "small",
        srcs = ["//testing/presubmit:no_path_test.sh"],
        args = ["$(rootpath :%s_path)" % name],
        data = [":%s_path" % name],
        tags = ["no-sanitizer"],
    )
