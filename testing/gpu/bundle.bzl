# SPDX-License-Identifier: Apache-2.0
"""gpu_bundle: a folder to carry to a machine that has a GPU, and neither Bazel nor a network."""

def _gpu_bundle_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    root = ctx.label.package + "/"
    args = ctx.actions.args()
    args.add("--out", out.path)
    args.add("--wheel", ctx.file.wheel.path)
    args.add("--license", ctx.file.license)
    args.add_all(ctx.files.programs, before_each = "--program")
    args.add_all(ctx.attr.compiled_in, before_each = "--compiled-in")
    for file in ctx.files.srcs:
        args.add(file, format = file.short_path[len(root):] + "=%s")
    ctx.actions.run(
        executable = ctx.executable._make_bundle,
        arguments = [args],
        inputs = ctx.files.srcs + ctx.files.programs + [ctx.file.wheel, ctx.file.license],
        outputs = [out],
        mnemonic = "GpuBundle",
        progress_message = "Laying out %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

gpu_bundle = rule(
    doc = "The folder `name`; build it with -c opt to carry it to a machine.",
    implementation = _gpu_bundle_impl,
    attrs = {
        "compiled_in": attr.string_list(
            doc = "The distribution's packages of whose headers code is in the programs.",
        ),
        "license": attr.label(
            allow_single_file = True,
            mandatory = True,
        ),
        "programs": attr.label_list(
            doc = "Go to programs.zip, with the libraries that they need.",
        ),
        "srcs": attr.label_list(
            doc = "Files of this package, which go to the same places.",
            allow_files = True,
        ),
        "wheel": attr.label(
            allow_single_file = True,
            mandatory = True,
        ),
        "_make_bundle": attr.label(
            cfg = "exec",
            default = "//testing/gpu:make_bundle",
            executable = True,
        ),
    },
)
