# SPDX-License-Identifier: Apache-2.0
"""cargo_test: what cargo has to say of a crate, as one test, offline; cargo_programs: its examples."""

load("@local_rust//:config.bzl", "UNAVAILABLE")
load("@rules_python//python:defs.bzl", "py_test")
load("//tools/build_rules:programs.bzl", "programs")

def cargo_test(name, srcs, sdk, vendor, manifest = "Cargo.toml", tags = [], **kwargs):
    """Runs `cargo fmt --check`, `clippy`, `test` and `doc` on a crate; warnings are errors.

    Each Rust test is a case of its own. One target for a whole crate: the cost is per target. Where
    there is no Rust, or one too old, it is skipped with the reason.

    Args:
      name: the test's.
      srcs: every file of the crate, Cargo.toml and Cargo.lock among them.
      sdk: the tarball of the `sdk` that the crate builds against.
      vendor: the archive of a cargo_vendor.
      manifest: the crate's Cargo.toml.
      tags: more tags; nothing of cargo's is instrumented, so it never runs under a sanitizer.
      **kwargs: py_test's others.
    """
    cargo = "@local_rust//:bin/cargo"
    py_test(
        name = name,
        srcs = ["//tools/build_rules:cargo_main.py"],
        args = ["--skip='%s'" % UNAVAILABLE] if UNAVAILABLE else [
            "--cargo=$(rootpath %s)" % cargo,
            "--manifest=$(rootpath %s)" % manifest,
            "--sdk=$(rootpath %s)" % sdk,
            "--vendor=$(rootpath %s)" % vendor,
        ],
        data = srcs + [
            cargo,
            sdk,
            vendor,
            "@local_rust//:version.txt",
        ],
        main = "//tools/build_rules:cargo_main.py",
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

def cargo_programs(name, srcs, examples, sdk, vendor, manifest = "Cargo.toml", tags = [], **kwargs):
    """Builds examples of a crate, as NAME/EXAMPLE.

    Args:
      name: the folder's.
      srcs: as cargo_test's.
      examples: their names.
      sdk: the `sdk` whose tarball they build against, and whose library they find.
      vendor: as cargo_test's.
      manifest: the crate's Cargo.toml.
      tags: more tags.
      **kwargs: those of every rule.
    """
    cargo = "@local_rust//:bin/cargo"
    programs(
        name = name,
        arguments = [
            "--cargo=$(execpath %s)" % cargo,
            "--manifest=$(execpath %s)" % manifest,
            "--vendor=$(execpath %s)" % vendor,
        ],
        builder = "//tools/build_rules:cargo_build",
        inputs = srcs + [
            cargo,
            vendor,
            "@local_rust//:version.txt",
        ],
        programs = examples,
        sdk = sdk,
        tags = tags + ["no-sanitizer"],
        unavailable = UNAVAILABLE,
        **kwargs
    )
