# SPDX-License-Identifier: Apache-2.0
"""fuzz_test: a decoder that gets inputs which no encoder made."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def fuzz_test(name, deps, tags = []):
    """NAME.cc under testing/fuzz/driver.cc, with the inputs in corpus/NAME.

    With --config=fuzz libFuzzer drives it instead.

    Args:
      name: the test's, of its source and of its corpus.
      deps: what it decodes with.
      tags: more tags.
    """
    corpus = native.glob(["corpus/%s/*" % name])
    cc_test(
        name = name,
        size = "small",
        srcs = [
            name + ".cc",
            "fuzz_target.h",
        ] + select({
            ":libfuzzer": [],
            "//conditions:default": ["driver.cc"],
        }),
        args = ["$(rootpath %s)" % file for file in corpus],
        data = corpus,
        tags = tags,
        deps = deps,
    )
