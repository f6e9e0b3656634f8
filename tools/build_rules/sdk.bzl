# SPDX-License-Identifier: Apache-2.0
"""sdk: what programs outside this repository build against, as a folder and as a tarball."""

def _sdk_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    tarball = ctx.actions.declare_file("%s-%s.tar.gz" % (ctx.attr.library_name, ctx.attr.version))
    args = ctx.actions.args()
    args.add("--out", out.path)
    args.add("--tarball", tarball)
    args.add("--name", ctx.attr.library_name)
    args.add("--version", ctx.attr.version)
    args.add("--library", ctx.file.library)
    args.add("--license", ctx.file.license)
    args.add_all(ctx.files.headers, before_each = "--header")
    args.add_all(ctx.attr.compiled_in, before_each = "--compiled-in")
    for template, place in ctx.attr.templates.items():
        args.add("--template", template.files.to_list()[0], format = place + "=%s")
    ctx.actions.run(
        executable = ctx.executable._make_sdk,
        arguments = [args],
        inputs = ctx.files.headers + ctx.files.templates + [ctx.file.library, ctx.file.license],
        outputs = [out, tarball],
        mnemonic = "Sdk",
        progress_message = "Laying out %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out])),
        OutputGroupInfo(tarball = depset([tarball])),
    ]

sdk = rule(
    doc = "The folder `name`; its output group \"tarball\" is the same, packed reproducibly.",
    implementation = _sdk_impl,
    attrs = {
        "compiled_in": attr.string_list(
            doc = "The distribution's packages of whose headers code is in the library.",
        ),
        "headers": attr.label_list(
            doc = "Go to include/<library_name>/, where they include each other from.",
            allow_files = [".h", ".hpp"],
        ),
        "library": attr.label(
            doc = "The shared library, named as its soname: libx.so.0.",
            allow_single_file = True,
            mandatory = True,
        ),
        "library_name": attr.string(mandatory = True),
        "license": attr.label(
            doc = "Goes to share/doc/<library_name>/LICENSE.",
            allow_single_file = True,
            mandatory = True,
        ),
        "templates": attr.label_keyed_string_dict(
            doc = "File -> where it goes, with @VERSION@ and @SONAME@ filled in.",
            allow_files = True,
        ),
        "version": attr.string(mandatory = True),
        "_make_sdk": attr.label(
            cfg = "exec",
            default = "//tools/build_rules:make_sdk",
            executable = True,
        ),
    },
)
