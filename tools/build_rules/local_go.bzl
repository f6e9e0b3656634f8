# SPDX-License-Identifier: Apache-2.0
"""@local_go: the machine's Go, or why there is none.

A Go older than `go_mod` asks for counts as none: what needs it is then skipped, and says so. WAYBILL_GO
(--repo_env) names another go than the first on PATH, or is 0 for none.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["version.txt"])
"""

def _numbers(version):
    return [int(number) for number in version.split("-")[0].split("rc")[0].split(".")]

def _minimum(rctx):
    for line in rctx.read(rctx.attr.go_mod).splitlines():
        if line.startswith("go "):
            return line[len("go "):].strip()
    fail("@%s: %s has no line \"go\"" % (rctx.name, rctx.attr.go_mod))

def _find_go(rctx):
    """(path of the go of a distribution's own tree, its version, "") or ("", "", why there is none)."""
    minimum = _minimum(rctx)
    go = rctx.os.environ.get("WAYBILL_GO") or rctx.which("go")
    if not go or go == "0":
        return "", "", "no Go; %s or later is needed, from go.dev say" % minimum

    # A wrapper on PATH may pick by folder: go to the tree itself.
    said = rctx.execute([go, "env", "GOROOT", "GOVERSION"], environment = {
        "GOENV": "off",
        "GOTOOLCHAIN": "local",
        "HOME": "/nonexistent",
    })
    if said.return_code != 0 or len(said.stdout.splitlines()) != 2:
        return "", "", "%s does not run" % go
    root, version = said.stdout.splitlines()
    if _numbers(version[len("go"):]) < _numbers(minimum):
        return "", "", "%s; %s or later is needed, from go.dev say" % (version, minimum)
    return root + "/bin/go", version, ""

def _local_go_impl(rctx):
    go, version, unavailable = _find_go(rctx)
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("BUILD", _BUILD)
    rctx.file("config.bzl", "GO = \"%s\"\nUNAVAILABLE = \"%s\"\n" % (go, unavailable))
    rctx.file("version.txt", (version or "none") + "\n")

local_go = repository_rule(
    implementation = _local_go_impl,
    attrs = {
        "go_mod": attr.label(mandatory = True),
    },
    configure = True,
    environ = [
        "PATH",
        "WAYBILL_GO",
    ],
    local = True,
)
