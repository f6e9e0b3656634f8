# SPDX-License-Identifier: Apache-2.0
"""@local_rust: the machine's Rust, or why there is none.

A Rust older than the rust-version of `cargo_toml` counts as none: what needs it is then skipped, and says
so. WAYBILL_RUST (--repo_env) names another rustc than the first on PATH or rustup's, or is 0 for none.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files([
    "bin/cargo",
    "version.txt",
])
"""

def _find_rustc(rctx):
    named = rctx.os.environ.get("WAYBILL_RUST")
    if named:
        return None if named == "0" else rctx.path(named)
    found = rctx.which("rustc")
    if found:
        return found
    rustup = rctx.path(rctx.os.environ.get("HOME", "/nonexistent") + "/.cargo/bin/rustc")
    return rustup if rustup.exists else None

def _minimum(rctx):
    for line in rctx.read(rctx.attr.cargo_toml).splitlines():
        if line.startswith("rust-version"):
            return line.split("\"")[1]
    fail("@%s: %s has no rust-version" % (rctx.name, rctx.attr.cargo_toml))

def _numbers(version):
    return [int(number) for number in version.split("-")[0].split(".")]

def _unavailable(rctx, why):
    """Users of the repository still load, and are skipped."""
    rctx.file("bin/cargo", "#!/bin/sh\nexit 1\n")
    rctx.file("config.bzl", "UNAVAILABLE = \"%s\"\n" % why)
    rctx.file("version.txt", "none\n")

def _local_rust_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("BUILD", _BUILD)
    minimum = _minimum(rctx)
    rustc = _find_rustc(rctx)
    if rustc == None:
        _unavailable(rctx, "no Rust; %s or later is needed, by rustup say" % minimum)
        return

    # rustup's own rustc picks a toolchain by folder and $HOME: go to the toolchain itself.
    sysroot = rctx.execute([rustc, "--print", "sysroot"])
    if sysroot.return_code != 0:
        _unavailable(rctx, "%s does not run" % rustc)
        return
    bin = rctx.path(sysroot.stdout.strip() + "/bin")
    version = rctx.execute([bin.get_child("rustc"), "--version"]).stdout.strip()
    if not bin.get_child("cargo").exists or len(version.split(" ")) < 2:
        _unavailable(rctx, "no cargo beside rustc in %s" % bin)
    elif _numbers(version.split(" ")[1]) < _numbers(minimum):
        _unavailable(rctx, "%s; %s or later is needed, by rustup say" % (version, minimum))
    else:
        rctx.symlink(bin, "bin")
        rctx.file("config.bzl", "UNAVAILABLE = \"\"\n")
        rctx.file("version.txt", version + "\n")

local_rust = repository_rule(
    implementation = _local_rust_impl,
    attrs = {
        "cargo_toml": attr.label(mandatory = True),
    },
    configure = True,
    environ = [
        "HOME",
        "PATH",
        "WAYBILL_RUST",
    ],
    local = True,
)
