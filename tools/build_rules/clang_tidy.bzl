# SPDX-License-Identifier: Apache-2.0
"""clang_tidy_aspect: what each C++ target includes, and clang-tidy on each C++ source of the product.

usage: bazel build --config=clang-tidy //...
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _flags(ctx, context):
    toolchain = find_cc_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        # Its module maps are inputs of the compiler's actions only.
        unsupported_features = ctx.disabled_features + ["layering_check"],
    )
    variables = cc_common.create_compile_variables(
        cc_toolchain = toolchain,
        feature_configuration = features,
        include_directories = context.includes,
        preprocessor_defines = depset(transitive = [context.defines, context.local_defines]),
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts,
    )
    flags = cc_common.get_memory_inefficient_command_line(
        action_name = CPP_COMPILE_ACTION_NAME,
        feature_configuration = features,
        variables = variables,
    )

    # The toolchain defines __DATE__ and its like away, which clang-tidy takes for a mistake.
    return [f for f in flags if not f.startswith("-D__")]

def _check(ctx, source, context, flags):
    stamp = ctx.actions.declare_file("%s.%s.clang-tidy" % (source.basename, ctx.label.name))
    ctx.actions.run_shell(
        command = "out=$1; shift; \"$@\" 2>\"$out\" || { cat \"$out\"; exit 1; }",
        arguments = [
            stamp.path,
            ctx.file._clang_tidy.path,
            "--quiet",
            "--config-file=" + ctx.file._config.path,
            source.path,
            "--",
        ] + flags,
        inputs = depset(
            [source, ctx.file._config, ctx.file._clang_tidy] + ctx.files._headers,
            transitive = [context.headers, find_cc_toolchain(ctx).all_files],
        ),
        outputs = [stamp],
        mnemonic = "ClangTidy",
        progress_message = "Checking %s" % source.short_path,
    )
    return stamp

def _check_layers(ctx):
    """Checks that the target includes only what it depends on directly: see layers.py."""
    own = [
        f
        for src in getattr(ctx.rule.attr, "srcs", []) + getattr(ctx.rule.attr, "hdrs", [])
        for f in src.files.to_list()
    ]

    # What the build writes is not ours to mend.
    sources = [f for f in own if f.is_source and f.extension in ["cc", "h"]]
    contexts = [d[CcInfo].compilation_context for d in ctx.rule.attr.deps if CcInfo in d]
    headers = ctx.actions.declare_file(ctx.label.name + ".headers")
    ctx.actions.write(headers, "\n".join([
        f.short_path
        for files in [c.direct_headers for c in contexts] + [own]
        for f in files
    ]))
    stamp = ctx.actions.declare_file(ctx.label.name + ".layers")
    ctx.actions.run_shell(
        command = "python3 \"$@\"",
        arguments = [ctx.file._layers.path, str(ctx.label), stamp.path, headers.path] +
                    [f.path for f in sources],
        inputs = sources + [headers, ctx.file._layers],
        outputs = [stamp],
        mnemonic = "Layers",
        progress_message = "Checking the includes of %s" % ctx.label,
    )
    return stamp

def _clang_tidy_aspect_impl(target, ctx):
    if ctx.label.workspace_name or ctx.rule.kind not in ["cc_binary", "cc_library", "cc_test"]:
        return []
    layers = _check_layers(ctx)
    if ctx.rule.attr.testonly or ctx.rule.kind == "cc_test":
        return [OutputGroupInfo(clang_tidy = depset([layers]), layers = depset([layers]))]
    sources = [
        f
        for src in ctx.rule.attr.srcs
        for f in src.files.to_list()
        if f.extension == "cc" and f.is_source
    ]
    if CcInfo in target:
        context = target[CcInfo].compilation_context
    else:
        context = cc_common.merge_cc_infos(
            cc_infos = [dep[CcInfo] for dep in ctx.rule.attr.deps if CcInfo in dep],
        ).compilation_context
    flags = _flags(ctx, context)
    checked = [_check(ctx, f, context, flags) for f in sources]
    return [OutputGroupInfo(
        clang_tidy = depset(checked + [layers]),
        layers = depset([layers]),
    )]

clang_tidy_aspect = aspect(
    implementation = _clang_tidy_aspect_impl,
    attrs = {
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_clang_tidy": attr.label(
            default = "@local_python//:clang_tidy/bin/clang-tidy",
            allow_single_file = True,
        ),
        "_config": attr.label(default = "//:.clang-tidy", allow_single_file = True),
        "_headers": attr.label(default = "@local_python//:clang_tidy_headers"),
        "_layers": attr.label(
            default = "//tools/build_rules:layers.py",
            allow_single_file = True,
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
