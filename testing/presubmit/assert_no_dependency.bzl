"""assert_no_dependency: a test that one target never comes to depend on another."""

load("@rules_shell//shell:sh_test.bzl", "sh_test")

def assert_no_dependency(name, target, dependency):
    """Fails, showing a path between them, where `target` depends on `dependency`.

    Args:
      name: the test's.
      target: what must not depend.
      dependency: on what, directly or through others.
    """
    native.genquery(
        name = name + "_path",
        testonly = True,
        expression = "somepath(%s, %s)" % (target, dependency),
        scope = [target, dependency],
    )
    sh_test(
        name = name,
        size = "small",
        srcs = ["//testing/presubmit:no_path_test.sh"],
        args = ["$(rootpath :%s_path)" % name],
        data = [":%s_path" % name],
        tags = ["no-sanitizer"],
    )
