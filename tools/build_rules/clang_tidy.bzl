# SPDX-License-Identifier: Apache-2.0
"""clang_tidy_aspect: the objects of libraries and programs, and clang-tidy on each C++ source of the product.

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

def _clang_tidy_aspect_impl(target, ctx):
    if ctx.label.workspace_name or ctx.rule.kind not in ["cc_binary", "cc_library"]:
        return []
    objects = target[OutputGroupInfo].compilation_outputs
    if ctx.rule.attr.testonly:
        return [OutputGroupInfo(clang_tidy = objects)]
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
    return [OutputGroupInfo(clang_tidy = depset(checked, transitive = [objects]))]

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
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
