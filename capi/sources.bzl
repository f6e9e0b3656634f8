# SPDX-License-Identifier: Apache-2.0
"""The C ABI's own sources, which //capi/abi builds once more as of a later release."""

SOURCES = [
    "call.cc",
    "context.cc",
    "controller.cc",
    "handle_table.cc",
    "layout.cc",
    "manifest.cc",
    "manifest_json.cc",
    "plan.cc",
    "quantisation.cc",
    "queue.cc",
    "rank.cc",
    "region.cc",
    "struct_size.cc",
    "trainer.cc",
    "update.cc",
    "version.cc",
    "worker.cc",
]

HEADERS = [
    "call.h",
    "context.h",
    "deadline.h",
    "first_sizes.h",
    "handle_table.h",
    "manifest.h",
    "object.h",
    "quantisation.h",
    "queue.h",
    "rank.h",
    "region.h",
    "struct_size.h",
    "update.h",
]
