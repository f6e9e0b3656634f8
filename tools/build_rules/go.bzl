# SPDX-License-Identifier: Apache-2.0
"""go_test: what Go has to say of a module, as one test, offline; go_programs: what it builds of one."""

load("@local_go//:config.bzl", "GO", "UNAVAILABLE")
load("@rules_python//python:defs.bzl", "py_test")
load("//tools/build_rules:programs.bzl", "programs")

def go_test(name, srcs, sdk, tags = [], **kwargs):
    """Runs gofmt, `go vet` and `go test -race` on a module, the one of this package, with cgo.

    Each Go test is a case of its own. One target for a whole module: the cost is per target. Where
    there is no Go, or one too old, it is skipped with the reason.

    Args:
      name: the test's.
      srcs: every file of the module, go.mod among them. It depends on the standard library only.
      sdk: the tarball of the `sdk` that cgo builds against.
      tags: more tags; nothing of Go's is instrumented, so it never runs under a sanitizer.
      **kwargs: py_test's others.
    """
    py_test(
        name = name,
        srcs = ["//tools/build_rules:go_main.py"],
        args = ["--skip='%s'" % UNAVAILABLE] if UNAVAILABLE else [
            "--go=" + GO,
            "--module=" + native.package_name(),
            "--sdk=$(rootpath %s)" % sdk,
        ],
        data = srcs + [
            sdk,
            "@local_go//:version.txt",
        ],
        main = "//tools/build_rules:go_main.py",
        tags = tags + [
            "cpu:2",
            "no-sanitizer",
        ],
        deps = [
            "//tools/build_rules:case_report",
            "//tools/build_rules:kept_folder",
        ],
        **kwargs
    )

def go_programs(name, srcs, packages, sdk, tags = [], **kwargs):
    """Builds programs of a module, the one of this package, as NAME/PROGRAM.

    Args:
      name: the folder's.
      srcs: as go_test's.
      packages: folders of the module; a program is called as its folder.
      sdk: the `sdk` whose tarball they build against, and whose library they find.
      tags: more tags.
      **kwargs: those of every rule.
    """
    programs(
        name = name,
        arguments = ["--go=" + GO, "--module=" + native.package_name()] +
                    ["--package=" + package for package in packages],
        builder = "//tools/build_rules:go_build",
        inputs = srcs + ["@local_go//:version.txt"],
        programs = [package.split("/")[-1] for package in packages],
        sdk = sdk,
        tags = tags + ["no-sanitizer"],
        unavailable = UNAVAILABLE,
        **kwargs
    )
