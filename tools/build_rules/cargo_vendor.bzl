# SPDX-License-Identifier: Apache-2.0
"""cargo_vendor: the crates of a Cargo.lock, by `cargo vendor --locked`, as one archive.

The network is used here, when the repository is fetched, and nowhere else. An archive, since some
crates bring BUILD files, which would make packages of their own, and cargo checks every file, so that
none can be left out.
"""

def _cargo_vendor_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("BUILD", "exports_files([\"vendor.tar\"])\n")
    if rctx.read(Label("@local_rust//:version.txt")).strip() == "none":
        rctx.file("vendor.tar", "")
        return

    rctx.symlink(rctx.attr.manifest, "crate/Cargo.toml")
    rctx.symlink(rctx.attr.lockfile, "crate/Cargo.lock")
    rctx.file("crate/src/lib.rs", "")
    rctx.file("crate/build.rs", "fn main() {}")  # "links" asks for one.
    for command in [
        [
            rctx.path(Label("@local_rust//:bin/cargo")),
            "vendor",
            "--locked",
            "--quiet",
            "--respect-source-config",
            "--versioned-dirs",
            rctx.path("vendor"),
        ],
        [
            "tar",
            "--sort=name",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--create",
            "--file",
            rctx.path("vendor.tar"),
            "--directory",
            rctx.path("vendor"),
            ".",
        ],
    ]:
        result = rctx.execute(command, working_directory = "crate", timeout = 600)
        if result.return_code != 0:
            fail("@%s: %s: %s" % (rctx.name, " ".join([str(c) for c in command[:3]]), result.stderr))
    rctx.delete("vendor")

cargo_vendor = repository_rule(
    implementation = _cargo_vendor_impl,
    attrs = {
        "lockfile": attr.label(mandatory = True),
        "manifest": attr.label(mandatory = True),
    },
)
