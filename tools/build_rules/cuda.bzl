# SPDX-License-Identifier: Apache-2.0
"""cuda_fatbin: .cu files compiled to one fat binary, embedded in a cc_library."""

load("@local_cuda//:config.bzl", "AVAILABLE")
load("//tools/build_rules:embedded_image.bzl", "compile_unit", "embedded_image", "write_unit")

def _fatbin_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".fatbin")
    if not AVAILABLE:
        ctx.actions.write(out, "")
        return [DefaultInfo(files = depset([out]))]

    unit = write_unit(ctx, ".cu", ctx.files.srcs)
    args = ctx.actions.args()
    args.add("-fatbin", unit)
    args.add("-o", out)
    args.add_all(["-ccbin", "/usr/bin/g++", "-std=c++20", "-O3", "-I."])
    args.add_all(["--compress-mode=size", "--threads=2"])
    for arch in ctx.attr.sass:
        args.add("-gencode=arch=compute_%s,code=sm_%s" % (arch, arch))
    for arch in ctx.attr.ptx:
        args.add("-gencode=arch=compute_%s,code=compute_%s" % (arch, arch))
    args.add_all(ctx.attr.copts)
    return compile_unit(ctx, unit, ctx.files.srcs, ctx.executable._nvcc, args, out, "CudaCompile", "GPUs")

_fatbin = rule(
    implementation = _fatbin_impl,
    attrs = {
        "copts": attr.string_list(),
        "hdrs": attr.label_list(allow_files = True),
        "ptx": attr.string_list(),
        "sass": attr.string_list(),
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "_nvcc": attr.label(
            allow_single_file = True,
            cfg = "exec",
            default = "@local_cuda//:nvcc",
            executable = True,
        ),
        "_version": attr.label(default = "@local_cuda//:version.txt", allow_single_file = True),
    },
)

def cuda_fatbin(name, srcs, hdrs = [], sass = [], ptx = [], copts = [], **kwargs):
    """A cc_library that holds a fat binary, for the driver to load at run time.

    See embedded_image for what it defines. No CUDA runtime is linked. Without a CUDA compiler (see
    local_cuda.bzl) it is empty. <name>_fatbin is the file, <name>.fatbin.

    Args:
      name: the library's, and the symbols' first part.
      srcs: .cu files, compiled as one translation unit.
      hdrs: whatever they include.
      sass: compute capabilities to make machine code for.
      ptx: those to make PTX for, which the driver compiles on newer GPUs.
      copts: more options for nvcc.
      **kwargs: cc_library's others.
    """
    _fatbin(
        name = name + "_compiled",
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        ptx = ptx,
        sass = sass,
        visibility = ["//visibility:private"],
    )

    embedded_image(
        name = name,
        compiled = ":" + name + "_compiled",
        image = name + ".fatbin",
        **kwargs
    )
