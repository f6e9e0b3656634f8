# SPDX-License-Identifier: Apache-2.0
"""Everything from outside this repository: third_party/README.md says why each is here."""

load("//tools/build_rules:cargo_vendor.bzl", "cargo_vendor")
load("//tools/build_rules:compat.bzl", "compat_repositories")
load("//tools/build_rules:kubernetes_schemas.bzl", "kubernetes_schemas")
load("//tools/build_rules:local_cuda.bzl", "local_cuda")
load("//tools/build_rules:local_go.bzl", "local_go")
load("//tools/build_rules:local_hip.bzl", "local_hip")
load("//tools/build_rules:local_python.bzl", "local_python")
load("//tools/build_rules:local_pythons.bzl", "local_pythons")
load("//tools/build_rules:local_rust.bzl", "local_rust")
load("//tools/build_rules:local_torch.bzl", "local_torch")
load("//tools/build_rules:system_library.bzl", "system_library")

def waybill_repositories():
    """Declares the external repositories."""
    compat_repositories()

    system_library(
        name = "com_google_googletest",
        archives = ["gmock", "gmock_main", "gtest"],
        build_file = "//third_party:googletest.BUILD",
        debian = ["libgtest-dev", "libgmock-dev"],
        headers = ["gtest", "gmock"],
        packages = ["gtest", "gtest_main", "gmock", "gmock_main"],
    )

    system_library(
        name = "com_github_google_benchmark",
        build_file = "//third_party:benchmark.BUILD",
        debian = ["libbenchmark-dev"],
        headers = ["benchmark"],
        packages = ["benchmark"],
    )

    system_library(
        name = "com_google_absl",
        build_file = "//third_party:absl.BUILD",
        debian = ["libabsl-dev"],
        headers = ["absl"],
        packages = [
            "absl_any_invocable",
            "absl_btree",
            "absl_cleanup",
            "absl_core_headers",
            "absl_fixed_array",
            "absl_flat_hash_map",
            "absl_flat_hash_set",
            "absl_function_ref",
            "absl_hash",
            "absl_inlined_vector",
            "absl_int128",
            "absl_random_bit_gen_ref",
            "absl_random_distributions",
            "absl_random_random",
            "absl_span",
            "absl_status",
            "absl_statusor",
            "absl_str_format",
            "absl_strings",
            "absl_synchronization",
            "absl_time",
        ],
    )

    system_library(
        name = "com_google_protobuf",
        build_file = "//third_party:protobuf.BUILD",
        debian = ["libprotobuf-dev", "protobuf-compiler"],
        headers = ["google/protobuf"],
        packages = ["protobuf"],
        tools = ["protoc"],
    )

    system_library(
        name = "com_github_grpc_grpc",
        build_file = "//third_party:grpc.BUILD",
        debian = ["libgrpc++-dev", "libgrpc-dev", "protobuf-compiler-grpc"],
        headers = ["grpc", "grpc++", "grpcpp"],
        packages = ["grpc++"],
        tools = ["grpc_cpp_plugin"],
    )

    system_library(
        name = "openssl",
        build_file = "//third_party:openssl.BUILD",
        debian = ["libssl-dev"],
        headers = ["openssl"],
        packages = ["libcrypto"],
    )

    system_library(
        name = "highway",
        build_file = "//third_party:hwy.BUILD",
        debian = ["libhwy-dev"],
        headers = ["hwy"],
        packages = ["libhwy"],
    )

    system_library(
        name = "zlib",
        build_file = "//third_party:zlib.BUILD",
        debian = ["zlib1g-dev"],
        headers = [
            "zconf.h",
            "zlib.h",
        ],
        packages = ["zlib"],
    )

    system_library(
        name = "cli11",
        build_file = "//third_party:cli11.BUILD",
        debian = ["libcli11-dev"],
        headers = ["CLI"],
    )

    system_library(
        name = "nlohmann_json",
        build_file = "//third_party:nlohmann_json.BUILD",
        debian = ["nlohmann-json3-dev"],
        headers = ["nlohmann"],
    )

    system_library(
        name = "yaml_cpp",
        build_file = "//third_party:yaml_cpp.BUILD",
        debian = ["libyaml-cpp-dev"],
        headers = ["yaml-cpp"],
        packages = ["yaml-cpp"],
    )

    system_library(
        name = "prometheus_cpp",
        build_file = "//third_party:prometheus_cpp.BUILD",
        debian = ["prometheus-cpp-dev"],
        headers = ["prometheus"],
        packages = ["prometheus-cpp-core"],
    )

    system_library(
        name = "civetweb",
        build_file = "//third_party:civetweb.BUILD",
        debian = ["libcivetweb-dev"],
        headers = ["civetweb.h"],
    )

    system_library(
        name = "rdma_core",
        build_file = "//third_party:ibverbs.BUILD",
        debian = ["libibverbs-dev"],
        headers = ["infiniband"],
        packages = ["libibverbs"],
    )

    local_python(
        name = "local_python",
        requirements = "//third_party/python:requirements.lock",
    )

    local_pythons(name = "local_pythons")

    local_cuda(
        name = "local_cuda",
        requirements = "//third_party/cuda:requirements.lock",
    )

    local_hip(name = "local_hip")

    local_torch(
        name = "local_torch",
        requirements = "//third_party/torch:requirements.lock",
    )

    kubernetes_schemas(
        name = "kubernetes_schemas",
        requirements = "//third_party/kubernetes:requirements.lock",
        versions = [
            "1.25",
            "1.37",
        ],
    )

    local_rust(
        name = "local_rust",
        cargo_toml = "//bindings/rust:Cargo.toml",
    )

    cargo_vendor(
        name = "waybill_crates",
        lockfile = "//bindings/rust:Cargo.lock",
        manifest = "//bindings/rust:Cargo.toml",
    )

    local_go(
        name = "local_go",
        go_mod = "//bindings/go:go.mod",
    )

def waybill_toolchains():
    """Registers what the repositories above have to offer."""
    native.register_toolchains("@local_python//:toolchain")
