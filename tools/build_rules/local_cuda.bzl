# SPDX-License-Identifier: Apache-2.0
"""@local_cuda: the CUDA compiler, or nothing.

WAYBILL_CUDA (--repo_env) says which: "wheels", the default, are the packages of the lock file,
installed with their hashes checked into this repository; a folder is that of a CUDA toolkit, 13.0 or
later; "0" is none at all: kernels/cuda then builds without device code.
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

exports_files([
    "nvcc",
    "version.txt",
])

# What host code needs to call the driver: one header and no library.
cc_library(
    name = "driver_header",
    hdrs = glob(["include/cuda.h"]),
    includes = ["include"],
)
"""

# Finds the compiler from where it lies itself, so that it reads the same in every checkout and what
# it makes can be shared through a disk cache.
_WRAPPER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "{compiler}" "$@"
"""

def _run(rctx, command, **kwargs):
    result = rctx.execute(command, **kwargs)
    if result.return_code != 0:
        fail("@%s: %s:\n%s%s(--repo_env=WAYBILL_CUDA=0 builds without CUDA)" % (
            rctx.name,
            " ".join([str(c) for c in command[:4]]),
            result.stdout,
            result.stderr,
        ))
    return result.stdout

def _install_wheels(rctx):
    _run(rctx, [
        rctx.read(Label("@local_python//:python.txt")).strip(),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--target",
        rctx.path("site"),
        "--requirement",
        rctx.path(rctx.attr.requirements),
    ], timeout = 900)

def _local_cuda_impl(rctx):
    want = rctx.os.environ.get("WAYBILL_CUDA", "wheels")
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("BUILD", _BUILD)
    rctx.file("config.bzl", "AVAILABLE = %s\n" % (want != "0"))
    if want == "0":
        rctx.file("nvcc", "#!/bin/sh\nexit 1\n")
        rctx.file("version.txt", "none\n")
        return
    if want == "wheels":
        _install_wheels(rctx)
        home = str(rctx.path("site/nvidia/cu13"))
        rctx.file("nvcc", _WRAPPER.format(compiler = "$here/site/nvidia/cu13/bin/nvcc"))
    else:
        home = want
        rctx.file("nvcc", _WRAPPER.format(compiler = home + "/bin/nvcc"))
    rctx.symlink(home + "/include/cuda.h", "include/cuda.h")
    rctx.file("version.txt", _run(rctx, [home + "/bin/nvcc", "--version"]))

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    attrs = {
        "requirements": attr.label(mandatory = True, allow_single_file = True),
    },
    environ = ["WAYBILL_CUDA"],
)
