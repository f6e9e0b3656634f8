# SPDX-License-Identifier: Apache-2.0
"""@local_pythons: the CPython interpreters of this machine, which tests of the wheel run in.

pythons.json maps "3.12" to the interpreter, without those that are missing. They are looked for in
WAYBILL_PYTHONS (--repo_env; paths, separated by colons), then on PATH, then among pyenv's.
"""

_VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

_PROBE = """
import sys, sysconfig
free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
if sys.implementation.name == "cpython" and not free_threaded:
    print("%d.%d" % sys.version_info[:2], sys.executable)
"""

def _candidates(rctx):
    named = rctx.os.environ.get("WAYBILL_PYTHONS", "")
    found = [path for path in named.split(":") if path]
    for version in _VERSIONS:
        on_path = rctx.which("python" + version)
        if on_path:
            found.append(on_path)
    home = rctx.os.environ.get("HOME", "/nonexistent")
    versions = rctx.path(rctx.os.environ.get("PYENV_ROOT", home + "/.pyenv")).get_child("versions")
    if versions.exists:
        found += [folder.get_child("bin").get_child("python") for folder in versions.readdir()]
    return found

def _local_pythons_impl(rctx):
    pythons = {}
    for candidate in _candidates(rctx):
        # pyenv's shims fail if no such version is chosen.
        result = rctx.execute([candidate, "-I", "-c", _PROBE])
        words = result.stdout.strip().split(" ")
        if result.return_code == 0 and len(words) == 2 and words[0] in _VERSIONS:
            pythons.setdefault(words[0], words[1])
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("BUILD", "exports_files([\"pythons.json\"])\n")
    lines = ["  \"%s\": \"%s\"" % item for item in sorted(pythons.items())]
    rctx.file("pythons.json", "{\n%s\n}\n" % ",\n".join(lines))

local_pythons = repository_rule(
    implementation = _local_pythons_impl,
    environ = [
        "HOME",
        "PATH",
        "PYENV_ROOT",
        "WAYBILL_PYTHONS",
    ],
    local = True,
)
