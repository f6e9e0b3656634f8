# SPDX-License-Identifier: Apache-2.0
"""hip_fatbin: .cu files compiled for AMD's GPUs, embedded in a cc_library."""

load("@local_hip//:config.bzl", "ARCHITECTURES")
load("//tools/build_rules:embedded_image.bzl", "compile_unit", "embedded_image", "write_unit")

def _hipfb_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".hipfb")
    if not ARCHITECTURES:
        fail("%s: no hipcc; install it (Debian: hipcc), or name it by --repo_env=WAYBILL_HIPCC" % ctx.label)

    included = [ctx.file.language] + ctx.files.srcs
    unit = write_unit(ctx, ".hip", included)
    args = ctx.actions.args()
    args.add_all(["--genco", "-std=c++20", "-O3", "-I."])
    for architecture in ARCHITECTURES:
        args.add("--offload-arch=" + architecture)
    args.add_all(ctx.attr.copts)
    args.add("-o", out)
    args.add(unit)
    return compile_unit(ctx, unit, included, ctx.executable._hipcc, args, out, "HipCompile", "AMD's GPUs")

_hipfb = rule(
    implementation = _hipfb_impl,
    attrs = {
        "copts": attr.string_list(),
        "hdrs": attr.label_list(allow_files = True),
        "language": attr.label(allow_single_file = [".h"], mandatory = True),
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "_hipcc": attr.label(
            allow_single_file = True,
            cfg = "exec",
            default = "@local_hip//:hipcc",
            executable = True,
        ),
        "_version": attr.label(default = "@local_hip//:version.txt", allow_single_file = True),
    },
)

def hip_fatbin(name, srcs, language, hdrs = [], copts = [], **kwargs):
    """A cc_library that holds code for each of AMD's GPUs that the compiler knows.

    See embedded_image for what it defines. <name>_hipfb is the file, <name>.hipfb. Without hipcc it
    cannot be built, so it is tagged "manual".

    Args:
      name: the library's, and the symbols' first part.
      srcs: .cu files, compiled as one translation unit.
      language: a header that comes before them.
      hdrs: whatever they include.
      copts: more options for hipcc.
      **kwargs: cc_library's others.
    """
    _hipfb(
        name = name + "_compiled",
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        language = language,
        tags = ["manual"],
        visibility = ["//visibility:private"],
    )
    embedded_image(
        name = name,
        compiled = ":" + name + "_compiled",
        image = name + ".hipfb",
        alignment = 4096,  # A driver may map it instead of copying it.
        tags = ["manual"],
        **kwargs
    )
