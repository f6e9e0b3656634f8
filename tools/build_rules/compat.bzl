# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the rule repositories, for a Bazel older than 5.

Bazel 4's built-in WORKSPACE suffix declares @rules_cc, @rules_java,
@rules_proto and @remote_coverage_tools as downloads.  @bazel_tools loads the
first two for any C++ target, and every test target depends on the last, so
that without the stand-ins nothing builds offline.  (Debian's bazel-rules-cc
is no help: it needs symbols that Bazel 4's @bazel_tools does not have.)

They also let BUILD files load every rule from where newer Bazels have it.
"""

def _alias(names):
    return "".join(["{0} = native.{0}\n".format(n) for n in names])

_CC = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "objc_library",
]

_JAVA = [
    "java_binary",
    "java_import",
    "java_library",
    "java_package_configuration",
    "java_plugin",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

_PROTO = ["proto_lang_toolchain", "proto_library"]

_PY = ["py_binary", "py_library", "py_runtime", "py_test"]

_FILES = {
    "rules_cc": {
        "cc/BUILD": "",
        "cc/common/BUILD": "",
        "cc/common/builtin.bzl": "NativeCcInfo = CcInfo\nnative_cc_common = cc_common\n",
        "cc/common/cc_common.bzl": "load(\":builtin.bzl\", \"native_cc_common\")\ncc_common = native_cc_common\n",
        "cc/common/cc_info.bzl": "load(\":builtin.bzl\", \"NativeCcInfo\")\nCcInfo = NativeCcInfo\n",
        "cc/defs.bzl": _alias(_CC),
        "cc/find_cc_toolchain.bzl": """
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

CC_TOOLCHAIN_TYPE = "@bazel_tools//tools/cpp:toolchain_type"
find_cc_toolchain = find_cpp_toolchain

def use_cc_toolchain(mandatory = True):
    return [CC_TOOLCHAIN_TYPE]
""",
    },
    "rules_java": {
        "java/BUILD": "",
        "java/defs.bzl": _alias(_JAVA),
    },
    "rules_proto": {
        "proto/BUILD": "",
        "proto/builtin.bzl": "NativeProtoInfo = ProtoInfo\n",
        "proto/defs.bzl": "load(\":builtin.bzl\", \"NativeProtoInfo\")\n" +
                          _alias(_PROTO) + "ProtoInfo = NativeProtoInfo\n",
    },
    "rules_python": {
        "python/BUILD": "",
        "python/builtin.bzl": "NativePyInfo = PyInfo\n",
        "python/defs.bzl": _alias(_PY),
        "python/py_info.bzl": "load(\":builtin.bzl\", \"NativePyInfo\")\nPyInfo = NativePyInfo\n",
        "python/py_runtime_pair.bzl": """
load("@bazel_tools//tools/python:toolchain.bzl", _pair = "py_runtime_pair")
py_runtime_pair = _pair
""",
    },
    "rules_shell": {
        "shell/BUILD": "",
        "shell/sh_binary.bzl": _alias(["sh_binary"]),
        "shell/sh_library.bzl": _alias(["sh_library"]),
        "shell/sh_test.bzl": _alias(["sh_test"]),
    },
    # Bazel's own is a Java program; lcov_merger.py does both its jobs.
    "remote_coverage_tools": {
        "BUILD": """
package(default_visibility = ["//visibility:public"])

filegroup(
    name = "lcov_merger",
    srcs = ["lcov_merger.py"],
)

filegroup(
    name = "coverage_report_generator",
    srcs = ["lcov_merger.py"],
)
""",
    },
}

def _compat_repository_impl(rctx):
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    for path, text in _FILES[rctx.attr.kind].items():
        rctx.file(path, text, executable = False)
    if rctx.attr.kind == "remote_coverage_tools":
        rctx.symlink(rctx.attr._lcov_merger, "lcov_merger.py")

_compat_repository = repository_rule(
    implementation = _compat_repository_impl,
    attrs = {
        "kind": attr.string(mandatory = True),
        "_lcov_merger": attr.label(default = "//tools/build_rules/coverage:lcov_merger.py"),
    },
)

def compat_repositories():
    """Declares the stand-ins where Bazel is older than 5 (Debian's says "")."""
    major = native.bazel_version.split(".")[0]
    if major.isdigit() and int(major) >= 5:
        return
    for kind in _FILES:
        _compat_repository(name = kind, kind = kind)
