# SPDX-License-Identifier: Apache-2.0
"""@local_hip: hipcc, the compiler for AMD's GPUs, or nothing.

WAYBILL_HIPCC (--repo_env) names another than the first on PATH, such as /opt/rocm/bin/hipcc, or is 0 for
none. Which GPUs it knows depends on its version: Debian 12's makes code for MI100 and MI200.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files([
    "hipcc",
    "version.txt",
])
"""

# MI100; MI200; MI300; MI350.
_ARCHITECTURES = [
    "gfx908",
    "gfx90a",
    "gfx942",
    "gfx950",
]

def _knows(rctx, hipcc, architecture):
    """Whether the compiler makes code for it."""
    compiled = rctx.execute([
        hipcc,
        "--genco",
        "--offload-arch=" + architecture,
        "-o",
        rctx.path("probe.out"),
        rctx.path("probe.hip"),
    ])
    return compiled.return_code == 0

def _local_hip_impl(rctx):
    hipcc = rctx.os.environ.get("WAYBILL_HIPCC") or rctx.which("hipcc")
    if hipcc == "0":
        hipcc = None
    architectures = []
    if hipcc:
        rctx.file("probe.hip", "extern \"C\" __attribute__((global)) void Probe() {}\n")
        architectures = [name for name in _ARCHITECTURES if _knows(rctx, hipcc, name)]
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("BUILD", _BUILD)
    rctx.file("config.bzl", "ARCHITECTURES = %r\n" % architectures)
    if architectures:
        rctx.file("hipcc", "#!/bin/sh\nexec \"%s\" \"$@\"\n" % hipcc)
        rctx.file("version.txt", rctx.execute([hipcc, "--version"]).stdout)
    else:
        rctx.file("hipcc", "#!/bin/sh\nexit 1\n")
        rctx.file("version.txt", "none\n")

local_hip = repository_rule(
    implementation = _local_hip_impl,
    configure = True,
    environ = [
        "PATH",
        "WAYBILL_HIPCC",
    ],
    local = True,
)
