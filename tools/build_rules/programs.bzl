# SPDX-License-Identifier: Apache-2.0
"""programs: what another language's own tools build of a module, over an sdk."""

# As test frameworks have it, 77 is "skipped".
_STAND_IN = "#!/bin/sh\necho '%s'\nexit 77\n"

def _programs_impl(ctx):
    folder = ctx.label.name
    programs = [ctx.actions.declare_file(folder + "/" + name) for name in ctx.attr.programs]
    if ctx.attr.unavailable:
        for program in programs:
            ctx.actions.write(program, _STAND_IN % ctx.attr.unavailable, is_executable = True)
        return [DefaultInfo(files = depset(programs), runfiles = ctx.runfiles(programs))]

    # From a program's own folder up to where the SDK lies as well.
    up = "../" * (len(programs[0].short_path.split("/")) - 1)
    args = ctx.actions.args()
    args.add_all([ctx.expand_location(word, ctx.attr.inputs) for word in ctx.attr.arguments])
    tarball = ctx.attr.sdk[OutputGroupInfo].tarball.to_list()[0]
    args.add("--sdk", tarball)
    args.add("--run-path", "$ORIGIN/%s%s/lib" % (up, ctx.file.sdk.short_path))
    args.add_all(programs)
    ctx.actions.run(
        executable = ctx.executable.builder,
        arguments = [args],
        inputs = ctx.files.inputs + [tarball],
        outputs = programs,
        mnemonic = "Programs",
        progress_message = "Building %s" % ctx.label,
    )
    return [DefaultInfo(
        files = depset(programs),
        runfiles = ctx.runfiles(programs + [ctx.file.sdk]),
    )]

programs = rule(
    doc = """Programs in the folder `name`, built against the SDK's tarball, which find the SDK's library by their run path.

Where the language is missing they are scripts that print the reason and exit with 77.""",
    implementation = _programs_impl,
    attrs = {
        "arguments": attr.string_list(doc = "Of the builder, before --sdk, --run-path and the outputs."),
        "builder": attr.label(
            cfg = "exec",
            executable = True,
            mandatory = True,
        ),
        "inputs": attr.label_list(allow_files = True),
        "programs": attr.string_list(allow_empty = False),
        "sdk": attr.label(
            allow_single_file = True,
            mandatory = True,
        ),
        "unavailable": attr.string(doc = "Why the language is missing."),
    },
)
