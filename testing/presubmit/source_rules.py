# SPDX-License-Identifier: Apache-2.0
"""Rules on sources, one function each: it gets a path and the text, and tells what is wrong."""

import re
from pathlib import PurePosixPath

from tools.build_rules.licence_line import with_licence

C_SUFFIXES = {".c", ".cc", ".cu", ".cuh", ".h", ".hpp"}
CODE_SUFFIXES = C_SUFFIXES | {".bzl", ".go", ".py", ".rs"}

# Which names stay in which places: (what, pattern, path prefixes).
CONFINED = [
    (
        "verbs",
        re.compile(r"\bibv_\w|\bIBV_[A-Z]|[<\"]infiniband/"),
        ("core/fabric/verbs/", "testing/fake_verbs/"),
    ),
    (
        "CUDA or HIP",
        re.compile(r"\b(cu(da)?|hip)[A-Z]\w*|\b(CU(DA)?|HIP)_[A-Z]|[<\"](cuda|hip/)"),
        ("core/device/", "kernels/cuda/", "testing/fake_cuda/", "testing/gpu/"),
    ),
]

# What decides takes the time as an argument, and does nothing itself.
PURE = ("core/protocol/", "core/simulate/")
IMPURE = re.compile(
    r"absl::Now\(|\bSteadyNow\b|\bclock_gettime\b|<(chrono|thread|mutex|condition_variable|atomic|future|fstream)>"
    r"|<(unistd|fcntl|time|sys/\w+|netinet/\w+)\.h>|absl/(time/clock|synchronization)|\bgrpc(pp)?[/:]"
    r"|core/(fabric|engine|control|net|memory|device|stage)/"
)

# Packages that may not show gRPC or Protobuf in a header: all that core/control stands on.
BELOW_CONTROL = re.compile(
    r"kernels/|core/(base|device|engine|fabric|layout|memory|plan|simulate|stage|tensor)/"
)
RPC_INCLUDE = re.compile(r"#\s*include\s*([<\"](grpc|google/protobuf)|\"[^\"]*\.pb\.h\")")

# As clang-format writes them: a namespace and its end, and a type that has a body, at the left margin.
NAMESPACE = re.compile(r"(?:inline )?namespace(?: ([\w:]+))? \{$")
NAMESPACE_END = re.compile(r"\}  // namespace")
TYPE = re.compile(
    r"(?:template <.*> )?(?:struct|class|union|enum(?: class)?) "
    r"(?:alignas\(\w+\) |[A-Z_]{2,} |\[\[\w+\]\] )?([\w:]+)(?: final)?(?: :.*| \{.*)?$"
)

# The time of day steps, and what waits for it ends at once or never. Where it is meant.
TIME_OF_DAY = (
    "examples/",
    "core/control/credentials",
    "core/control/identity_test.cc",
    "testing/job/time_of_day",
    "tools/waybill/keys/keys_command.cc",
    "tools/waybill/observe/event_log.cc",
    "tools/waybill/observe/span_exporter.cc",
)
WALL_CLOCK = re.compile(
    r"\babsl::(Now|GetCurrentTimeNanos|ToChronoTime)\b|\bsystem_clock\b|\bCLOCK_REALTIME\b"
    r"|\bgettimeofday\b|\b(Wait|Await)WithDeadline\b|[^:\w]time\((nullptr|NULL|0)\)"
)

# Bugs are planted on purpose in copies only, which testing/simulation/planted makes.
PRODUCT = ("bindings/", "capi/", "core/", "kernels/")
PLANTED = re.compile(r"\bPlanted\(|\bBug::k|_planted\b|\bMutated\(|_mutated\b")

VAGUE_WORDS = {"common", "helper", "helpers", "misc", "util", "utils"}

SLEEP = re.compile(
    r"\bsleep_(for|until)\b|\bSleepFor\b|\b(u|nano)sleep\s*\(|\btime\.[Ss]leep\b|\bthread::sleep\b"
)
SHELL_SLEEP = re.compile(r"(^|[;&|]|\bdo)\s*sleep\s+\S")

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def _without_comments(text):
    """The code alone, on the lines where it stood."""
    return _COMMENTS.sub(lambda comment: "\n" * comment.group().count("\n"), text)


def _lines_with(pattern, text):
    return [i for i, line in enumerate(text.split("\n"), 1) if pattern.search(line)]


def is_test(path):
    return "_test." in path or path.startswith("testing/")


def confined_names(path, text):
    if PurePosixPath(path).suffix not in C_SUFFIXES:
        return []
    code = _without_comments(text)
    return [
        f"{path}:{line}: names {what}; only {' and '.join(places)} may"
        for what, pattern, places in CONFINED
        if not path.startswith(places)
        for line in _lines_with(pattern, code)
    ]


def rpc_in_headers(path, text):
    if not path.endswith(".h") or not BELOW_CONTROL.match(path):
        return []
    return [
        f"{path}:{line}: gRPC or Protobuf in a header below core/control"
        for line in _lines_with(RPC_INCLUDE, text)
    ]


def impure_names(path, text):
    if PurePosixPath(path).suffix not in C_SUFFIXES or not path.startswith(PURE) or is_test(path):
        return []
    code = _without_comments(text)
    return [
        f"{path}:{line}: a clock, thread, lock, socket or file in a package that does nothing itself"
        for line in _lines_with(IMPURE, code)
    ]


def deadlines_by_the_time_of_day(path, text):
    if PurePosixPath(path).suffix not in C_SUFFIXES or path.startswith(TIME_OF_DAY):
        return []
    code = _without_comments(text)
    return [
        f"{path}:{line}: the time of day, which steps; SteadyNow() in core/base/steady_now.h does not"
        for line in _lines_with(WALL_CLOCK, code)
    ]


def planted_bugs(path, text):
    pure_path = PurePosixPath(path)
    source = pure_path.suffix in CODE_SUFFIXES or pure_path.name == "BUILD"
    if not source or not path.startswith(PRODUCT):
        return []
    return [
        f"{path}:{line}: a bug on purpose; make it a patch in testing/simulation/planted"
        for line in _lines_with(PLANTED, text)
    ]


def vague_names(path, _text):
    words = re.split(r"[/._-]", path.lower())
    return [
        f"{path}: {word!r} says nothing of what it does" for word in words if word in VAGUE_WORDS
    ]


def sleeps_in_tests(path, text):
    if not is_test(path):
        return []
    suffix = PurePosixPath(path).suffix
    if suffix == ".sh":
        pattern = SHELL_SLEEP
    elif suffix in CODE_SUFFIXES:
        pattern = SLEEP
    else:
        return []
    return [
        f"{path}:{line}: sleeps; wait for a condition, or move a fake clock"
        for line in _lines_with(pattern, text)
    ]


def _types(text):
    """The full names of the types that other sources could name too, each with its line."""
    around = []
    for line, code in enumerate(text.split("\n"), 1):
        if opened := NAMESPACE.match(code):
            around.append(opened[1] or "")
        elif NAMESPACE_END.match(code):
            around.pop()
        elif "" not in around and (found := TYPE.match(code)):
            yield "::".join([*around, found[1]]), line


def types_defined_twice(texts):
    """On all sources, path -> text: the linker would take one of the definitions, and say nothing."""
    places = {}
    for path, text in texts.items():
        if PurePosixPath(path).suffix in C_SUFFIXES:
            for name, line in _types(text):
                places.setdefault(name, {}).setdefault(path, line)
    return [
        f"{path}:{line}: {name} is also defined in {', '.join(p for p in found if p != path)}"
        for name, found in places.items()
        if len(found) > 1
        for path, line in found.items()
    ]


def unnamed_licences(path, text):
    if with_licence(path, text) == text:
        return []
    return [f"{path}: does not begin with the line that names the licence; tools/format adds it"]


SOURCE_RULES = [
    confined_names,
    deadlines_by_the_time_of_day,
    impure_names,
    planted_bugs,
    rpc_in_headers,
    sleeps_in_tests,
    unnamed_licences,
    vague_names,
]
