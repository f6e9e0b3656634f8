# SPDX-License-Identifier: Apache-2.0
"""py_wheel: a wheel of py_library targets, programs and the shared libraries that both need."""

def _py_wheel_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    root = ctx.label.package + "/"
    places = {}
    for dep in ctx.attr.deps:
        for file in dep[DefaultInfo].default_runfiles.files.to_list():
            if file.short_path.startswith(root):
                places[file.short_path[len(root):]] = file
    for library in ctx.files.libraries:
        places["%s/%s" % (ctx.attr.package, library.basename)] = library
    for binary in ctx.files.binaries:
        places["%s/bin/%s" % (ctx.attr.package, binary.basename)] = binary

    places["LICENSE"] = ctx.file.license

    args = ctx.actions.args()
    args.add("--out", out.path)
    args.add("--pyproject", ctx.file.pyproject)
    args.add_all(ctx.attr.compiled_in, before_each = "--compiled-in")
    for place in sorted(places):
        args.add(places[place], format = place + "=%s")
    ctx.actions.run(
        executable = ctx.executable._build_wheel,
        arguments = [args],
        inputs = places.values() + [ctx.file.pyproject],
        outputs = [out],
        mnemonic = "PyWheel",
        progress_message = "Making the wheel %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

py_wheel = rule(
    doc = "The folder `name` with one wheel in it; build it with -c opt to give it to somebody.",
    implementation = _py_wheel_impl,
    attrs = {
        "binaries": attr.label_list(
            doc = "Programs, which go to <package>/bin; pyproject.toml may name a script that runs them.",
            allow_files = True,
        ),
        "compiled_in": attr.string_list(
            doc = "Packages, of the distribution or of @local_python, of whose headers code is in it.",
        ),
        "deps": attr.label_list(
            doc = "What they and their deps have at or below this package goes in, at the same place.",
        ),
        "libraries": attr.label_list(
            doc = "Shared libraries of ours, which go beside <package>/__init__.py.",
            allow_files = True,
        ),
        "license": attr.label(
            doc = "Goes in as LICENSE; pyproject.toml names it.",
            allow_single_file = True,
            mandatory = True,
        ),
        "package": attr.string(mandatory = True),
        "pyproject": attr.label(
            allow_single_file = True,
            mandatory = True,
        ),
        "_build_wheel": attr.label(
            cfg = "exec",
            default = "//tools/build_rules:build_wheel",
            executable = True,
        ),
    },
)
