# SPDX-License-Identifier: Apache-2.0
"""@local_python: a Python 3 with the locked packages, and what its extensions are compiled with.

The packages of the lock file are installed, hashes checked, into a virtual environment in this
repository. Its folder carries the lock's checksum: another lock means another interpreter path,
and tests run again.

WAYBILL_PYTHON (--repo_env) names the interpreter the environment is made from: 3.11 or later, as the locked
packages are. The default is the distribution's python3, else the first one on PATH. Extension modules and the
wheel are the same with any of them, because they use the limited API.
"""

_PROBE = """
import os, sys, sysconfig
assert sys.version_info >= (3, 11), "Python 3.11 or later is needed"
import ensurepip
include = sysconfig.get_path("include")
assert os.path.exists(include + "/Python.h"), include + "/Python.h is missing"
print(os.path.realpath(sys.executable))
print(include)
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")
load("@rules_python//python:defs.bzl", "py_runtime")
load("@rules_python//python:py_runtime_pair.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

exports_files([
    "clang_tidy/bin/clang-tidy",
    "python.txt",
])

# The headers that clang-tidy needs of its own.
filegroup(
    name = "clang_tidy_headers",
    srcs = glob(["clang_tidy/lib/**"]),
)

cc_library(
    name = "headers",
    hdrs = glob(["include/python/**/*.h"]),
    includes = ["include/python"],
)

# stub_shebang: the default asks for a "python", which Debian does not have.
py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
    stub_shebang = "#!{python}",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _run(rctx, command, hint = "", **kwargs):
    result = rctx.execute(command, **kwargs)
    if result.return_code != 0:
        fail("@%s: %s%s:\n%s%s" % (
            rctx.name,
            hint,
            " ".join([str(c) for c in command[:4]]),
            result.stdout,
            result.stderr,
        ))
    return result.stdout

def _base_interpreter(rctx):
    named = rctx.os.environ.get("WAYBILL_PYTHON")
    if named:
        return named
    system = rctx.path("/usr/bin/python3")
    return system if system.exists else rctx.which("python3")

def _local_python_impl(rctx):
    base = _base_interpreter(rctx)
    if not base:
        fail("@%s: no python3 on this machine (tools/setup installs: python3 python3-dev python3-venv)" % rctx.name)

    # A version manager's shim picks an interpreter by folder: go to the interpreter itself.
    hint = "(tools/setup installs: python3 python3-dev python3-venv) "
    base, include = _run(rctx, [base, "-c", _PROBE], hint = hint).splitlines()
    lock = rctx.path(rctx.attr.requirements)
    checksum = _run(rctx, ["sha256sum", lock]).split(" ")[0].lstrip("\\")
    venv = str(rctx.path("venv-" + checksum[:12]))
    python = venv + "/bin/python3"
    _run(rctx, [base, "-m", "venv", venv], hint = hint, timeout = 600)
    _run(rctx, [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--requirement",
        lock,
    ], timeout = 900)

    rctx.symlink(include, "include/python")

    # In this repository, what it makes can be shared through a disk cache: its path is the same in every checkout.
    tidy = _run(rctx, [python, "-c", "import clang_tidy; print(clang_tidy.__path__[0])"]).strip()
    rctx.symlink(tidy + "/data", "clang_tidy")

    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("python.txt", python + "\n")
    rctx.file("BUILD", _BUILD.format(python = python))

local_python = repository_rule(
    implementation = _local_python_impl,
    attrs = {
        "requirements": attr.label(mandatory = True, allow_single_file = True),
    },
    environ = ["WAYBILL_PYTHON"],
)
