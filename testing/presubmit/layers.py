# SPDX-License-Identifier: Apache-2.0
"""The layer rule: a package uses lower layers only, and shows itself to higher ones only."""

from pathlib import PurePosixPath

from testing.presubmit.build_files import constant, package_of, targets

# Code of no layer: the rules of the build itself, and what lies at the root.
OUTSIDE_LAYERS = ("", "tools/build_rules", "third_party")


def _matches(package, spec):
    if spec.endswith("/..."):
        return (package + "/").startswith(spec[2:-3])
    return package == spec[2:]


def _is_under(package, folder):
    return package == folder or package.startswith(folder + "/")


class LayerMap:
    """LAYERS of the root BUILD."""

    def __init__(self, root_build):
        self.rows = [
            (layer, name, spec)
            for layer, rows in enumerate(constant(root_build, "LAYERS"))
            for name, specs in rows.items()
            for spec in specs
        ]

    def row(self, package):
        """(layer, name, spec) of a package, or None."""
        # The longest fits best: core/fabric/tcp is not part of core/fabric.
        rows = [row for row in self.rows if _matches(package, row[2])]
        return max(rows, key=lambda row: len(row[2]), default=None)

    def must_have_row(self, package):
        return any(_is_under(package, top) for top in ("core", "kernels", "capi"))

    def objection(self, package, target, used):
        """Why `target` of `package` may not use the package `used`; None where it may."""
        if used == package or used in OUTSIDE_LAYERS:
            return None
        if _is_under(used, "testing"):
            if target.is_test or _is_under(package, "testing"):
                return None
            return "only tests may use //testing"
        if _is_under(package, "testing") or _is_under(package, "tools"):
            return None
        if _is_under(package, "bindings"):
            allowed = _is_under(used, "capi") or _is_under(used, "bindings")
            # A wheel packs programs without knowing what is in them, and its test packs them again.
            packs = target.rule == "py_wheel" or target.is_test
            allowed = allowed or (packs and _is_under(used, "tools"))
            # Their tests run the examples.
            allowed = allowed or (target.is_test and _is_under(used, "examples"))
            return None if allowed else "bindings see //capi only"
        if _is_under(package, "examples"):
            seen = ("capi", "bindings", "examples", "tools")
            allowed = any(_is_under(used, top) for top in seen)
            return None if allowed else "examples see what a user has, and no //core"
        row, used_row = self.row(package), self.row(used)
        if row is None or used_row is None:
            return f"//{package if row is None else used} is in no row of LAYERS in //:BUILD"
        if used_row[0] < row[0] or used_row == row:
            return None
        return f"layer {row[0]} ({row[1]}) may not use layer {used_row[0]} ({used_row[1]})"


def _visibility_objection(row, seen_by):
    allowed = ("//:may_use_" + row[1], "//visibility:private")
    if seen_by in allowed or seen_by.endswith((":__pkg__", ":__subpackages__")):
        return None
    return f"is visible to {seen_by}; {allowed[0]} is what its layer shows itself to"


def layer_violations(build_files):
    """build_files: path -> text, the root's under "BUILD". One line for each offending edge."""
    layers = LayerMap(build_files["BUILD"])
    found = []
    for path, text in sorted(build_files.items()):
        package = str(PurePosixPath(path).parent)
        package = "" if package == "." else package
        row = layers.row(package)
        if layers.must_have_row(package) and row is None:
            found.append(f"{path}: //{package} is in no row of LAYERS in //:BUILD")
            continue
        if not package:
            continue
        for target in targets(text):
            where = f"{path}:{target.line}: //{package}:{target.name}"
            for label in target.labels:
                why = layers.objection(package, target, package_of(label))
                if why:
                    found.append(f"{where} -> {label}: {why}")
            for seen_by in target.visibility if row else []:
                why = _visibility_objection(row, seen_by)
                if why:
                    found.append(f"{where} {why}")
    return found
