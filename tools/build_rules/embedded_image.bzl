# SPDX-License-Identifier: Apache-2.0
"""embedded_image: a file in a cc_library, for a driver to load at run time; and what makes such files."""

load("@rules_cc//cc:defs.bzl", "cc_library")

_ASSEMBLY = """.section .rodata
.balign {alignment}
.global {name}_begin, {name}_end
{name}_begin:
.incbin \\"$(execpath :{image})\\"
{name}_end:
.byte 0
.section .note.GNU-stack,\\"\\",@progbits
"""

def write_unit(ctx, extension, included):
    """Writes a file that includes all others: one image to load, and one set of what they share."""
    unit = ctx.actions.declare_file(ctx.label.name + extension)
    ctx.actions.write(unit, "".join(["#include \"%s\"\n" % file.path for file in included]))
    return unit

def compile_unit(ctx, unit, included, compiler, arguments, out, mnemonic, kind):
    """Compiles that file. The rule has the attributes hdrs, and _version for the compiler's version."""
    ctx.actions.run(
        executable = compiler,
        arguments = [arguments],
        inputs = included + ctx.files.hdrs + [unit, ctx.file._version],
        outputs = [out],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = mnemonic,
        progress_message = "Compiling for %s: %s" % (kind, ctx.label),
    )
    return [DefaultInfo(files = depset([out]))]

def embedded_image(name, compiled, image, alignment = 64, tags = [], **kwargs):
    """A cc_library that defines <name>_begin and <name>_end, extern "C" const unsigned char[].

    Args:
      name: the library's, and the symbols' first part.
      compiled: the label of the rule that makes the file.
      image: the name of the file as an output of this package. Its target is that name with _ for dots.
      alignment: of its first byte.
      tags: of all that it makes.
      **kwargs: cc_library's others.
    """
    target = image.replace(".", "_")

    # As a tool it is compiled once for all configurations: sanitizers and the like don't concern it.
    native.genrule(
        name = target,
        outs = [image],
        cmd = "cp $(execpath %s) $@" % compiled,
        tools = [compiled],
        tags = tags,
        visibility = ["//visibility:private"],
    )
    native.genrule(
        name = name + "_assembly",
        srcs = [":" + target],
        outs = [name + ".s"],
        cmd = "printf '%s' \"" + _ASSEMBLY.format(
            name = name,
            alignment = alignment,
            image = target,
        ) + "\" > $@",
        tags = tags,
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [name + ".s"],
        copts = ["-Wno-unused-command-line-argument"],  # clang's: an assembler needs none of them.
        # Not hidden symbols: where tests link dynamically, a library refers to them.
        textual_hdrs = [":" + target],
        linkstatic = True,
        tags = tags,
        alwayslink = True,
        **kwargs
    )
