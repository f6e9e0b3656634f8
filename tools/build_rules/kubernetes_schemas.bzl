# SPDX-License-Identifier: Apache-2.0
"""@kubernetes_schemas: the JSON schemas of Kubernetes' API, VERSION.json for each of `versions`.

They come from the Python package kubernetes-validate, whose file is fetched with its hash checked. Nothing of
it is installed: it has the schemas of 13 versions in 17000 files.
"""

_EXTRACT = """
import pathlib, sys, zipfile
(wheel,) = pathlib.Path("fetched").glob("*.whl")
with zipfile.ZipFile(wheel) as package:
    for version in sys.argv[1:]:
        name = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/_definitions.json"
        pathlib.Path(f"{version}.json").write_bytes(package.read(name))
"""

def _kubernetes_schemas_impl(rctx):
    python = rctx.read(Label("@local_python//:python.txt")).strip()
    fetch = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    fetch += ["--require-hashes", "--only-binary=:all:", "--dest", "fetched", "--requirement"]
    for command in [
        fetch + [rctx.path(rctx.attr.requirements)],
        [python, "-c", _EXTRACT] + rctx.attr.versions,
    ]:
        result = rctx.execute(command, timeout = 600)
        if result.return_code != 0:
            fail("@%s: %s:\n%s%s" % (
                rctx.name,
                " ".join([str(word) for word in command[:4]]),
                result.stdout,
                result.stderr,
            ))
    rctx.delete("fetched")
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % rctx.name)
    rctx.file("BUILD", """
filegroup(
    name = "schemas",
    srcs = glob(["*.json"]),
    visibility = ["//visibility:public"],
)
""")

kubernetes_schemas = repository_rule(
    implementation = _kubernetes_schemas_impl,
    attrs = {
        "requirements": attr.label(mandatory = True, allow_single_file = True),
        "versions": attr.string_list(mandatory = True),
    },
)
