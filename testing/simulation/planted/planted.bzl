# SPDX-License-Identifier: Apache-2.0
"""planted_copies: copies of the sources of a library, with bugs that a test turns on."""

load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

# The packages whose libraries are copied, and with them every library that depends on one of these.
PACKAGES = [
    "core/control",
    "core/engine",
    "core/protocol",
]

_CopiesInfo = provider(
    "What the copy of a library consists of.",
    fields = {
        "outside": "The CcInfo of all libraries below it that are not copied.",
        "sources": "The sources and headers to copy; None if the library is not copied.",
    },
)

def _sources_aspect_impl(_target, ctx):
    if ctx.label.workspace_name or ctx.rule.kind != "cc_library":
        return [_CopiesInfo(sources = None, outside = None)]
    attr = ctx.rule.attr
    deps = [dep for dep in attr.deps if CcInfo in dep]
    copied = [dep[_CopiesInfo] for dep in deps if dep[_CopiesInfo].sources != None]
    if ctx.label.package not in PACKAGES and not copied:
        return [_CopiesInfo(sources = None, outside = None)]
    if attr.copts or attr.defines or attr.includes or attr.linkopts or attr.local_defines:
        fail("%s: its copy would be compiled without its options" % ctx.label)
    outside = [dep[CcInfo] for dep in deps if dep[_CopiesInfo].sources == None]
    return [_CopiesInfo(
        outside = cc_common.merge_cc_infos(cc_infos = outside + [c.outside for c in copied]),
        sources = depset(
            ctx.rule.files.srcs + ctx.rule.files.hdrs + ctx.rule.files.textual_hdrs,
            transitive = [c.sources for c in copied],
        ),
    )]

_sources_aspect = aspect(
    implementation = _sources_aspect_impl,
    attr_aspects = ["deps"],
)

def _planted_copies_impl(ctx):
    library = ctx.attr.library[_CopiesInfo]
    sources = library.sources.to_list()
    copies = [ctx.actions.declare_file(f.path) for f in sources]
    arguments = ctx.actions.args()
    arguments.add("copies")
    arguments.add("--root", ctx.bin_dir.path + "/" + ctx.label.package)
    arguments.add("--prefix", ctx.label.package)
    arguments.add_all(sources, before_each = "--source")
    arguments.add_all(ctx.files.patches)
    ctx.actions.run(
        executable = ctx.executable._plant,
        arguments = [arguments],
        inputs = sources + ctx.files.patches,
        outputs = copies,
        mnemonic = "Plant",
        progress_message = "Planting bugs in copies of %s" % ctx.attr.library.label,
    )
    return [
        DefaultInfo(files = depset(copies)),
        OutputGroupInfo(headers = depset([f for f in copies if f.extension == "h"])),
        library.outside,
    ]

# As a source it is the copies, as a dependency it is the libraries that they need.
planted_copies = rule(
    implementation = _planted_copies_impl,
    attrs = {
        "library": attr.label(
            aspects = [_sources_aspect],
            doc = "It is copied with all that it depends on, down to PACKAGES.",
            mandatory = True,
            providers = [CcInfo],
        ),
        "patches": attr.label_list(
            allow_files = [".patch"],
            doc = "Each plants one bug.",
        ),
        "_plant": attr.label(
            cfg = "exec",
            default = "//testing/simulation/planted:plant",
            executable = True,
        ),
    },
)
