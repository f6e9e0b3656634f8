# SPDX-License-Identifier: Apache-2.0
"""@local_torch: torch for tests, without a GPU and without NVIDIA's libraries.

The packages of the lock file are installed, hashes checked, into a folder whose name carries the lock's
checksum; torch_stand_ins.py makes them import. WAYBILL_TORCH (--repo_env) is "wheels", the default, or
"0" for none: `import torch` then says so, for pytest.importorskip to pass on.
"""

_BUILD = """
load("@rules_python//python:defs.bzl", "py_library")

# The folder is one input, not its twenty thousand files.
py_library(
    name = "torch",
    data = ["{site}"],
    imports = ["{site}"],
    visibility = ["//visibility:public"],
)
"""

_NONE = """
raise ModuleNotFoundError("no torch: --repo_env=WAYBILL_TORCH=0")
"""

def _run(rctx, command):
    result = rctx.execute(command, timeout = 900)
    if result.return_code != 0:
        fail("@%s: %s:\n%s%s(--repo_env=WAYBILL_TORCH=0 tests without torch)" % (
            rctx.name,
            " ".join([str(c) for c in command[:4]]),
            result.stdout,
            result.stderr,
        ))
    return result.stdout

def _local_torch_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    if rctx.os.environ.get("WAYBILL_TORCH", "wheels") == "0":
        rctx.file("none/torch.py", _NONE)
        rctx.file("BUILD", _BUILD.format(site = "none"))
        return
    python = rctx.read(Label("@local_python//:python.txt")).strip()
    stand_ins = rctx.path(rctx.attr._stand_ins)
    lock = rctx.path(rctx.attr.requirements)
    site = "site-" + _run(rctx, ["sha256sum", lock]).lstrip("\\")[:12]
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
        "--target",
        rctx.path(site),
        "--requirement",
        lock,
    ])
    _run(rctx, [python, stand_ins, rctx.path(site)])
    rctx.file("BUILD", _BUILD.format(site = site))

local_torch = repository_rule(
    implementation = _local_torch_impl,
    attrs = {
        "requirements": attr.label(mandatory = True),
        "_stand_ins": attr.label(default = "//tools/build_rules:torch_stand_ins.py"),
    },
    environ = ["WAYBILL_TORCH"],
)
