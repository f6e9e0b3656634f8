#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: sdk_test.sh SDK TARBALL VERSION
#
# Builds somebody else's program against the SDK, unpacked into a folder of its own, the way they would.
set -euo pipefail
tarball=$PWD/$2 version=$3 consumer=$PWD/capi/dist/consumer

sdk=$TEST_TMPDIR/unpacked
mkdir "$sdk"
tar -C "$sdk" --strip-components=1 -xf "$tarball"
diff -r "$1" "$sdk"
cmp LICENSE "$sdk/share/doc/waybill/LICENSE"
grep -q MIT "$sdk/share/doc/waybill/third_party/nlohmann-json3-dev"

# expect HOW COMMAND...
expect() {
  local how=$1 said
  shift
  said=$("$@")
  [ "$said" = "$version" ] || {
    printf 'built with %s: waybill_version() is "%s", //:version.bzl says "%s"\n' "$how" "$said" "$version"
    exit 1
  }
}

export PKG_CONFIG_PATH=$sdk/lib/pkgconfig
[ "$(pkg-config --modversion waybill)" = "$version" ]
gcc -std=c99 -Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags waybill) \
  "$consumer/print_version.c" -o "$TEST_TMPDIR/print_version" \
  $(pkg-config --libs waybill) "-Wl,-rpath,$(pkg-config --variable=libdir waybill)"
expect pkg-config "$TEST_TMPDIR/print_version"

build=$TEST_TMPDIR/build
cmake -S "$consumer" -B "$build" "-DCMAKE_PREFIX_PATH=$sdk" -DCMAKE_C_COMPILER=gcc >"$build.log" &&
  cmake --build "$build" >>"$build.log" || { cat "$build.log"; exit 1; }
expect CMake "$build/print_version"
