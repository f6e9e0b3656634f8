# SPDX-License-Identifier: Apache-2.0
"""Puts stand-ins for NVIDIA's libraries beside torch, so that a torch for CUDA imports without them.

usage: torch_stand_ins.py SITE [LIBRARY ...]

SITE is the folder that torch was installed into. Torch's libraries, and the given ones, name others that they need, and symbols
that these have; for each library that is nowhere, one is made in which every function returns 100: there
is no device. Nothing of NVIDIA's is in them. Needs gcc, nm and readelf.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

C_NAME = re.compile(r"[A-Za-z_]\w*")
GIVES_TEXT = re.compile(r"(String|ErrorName)$")


def output_of(*command):
    return subprocess.check_output(command, text=True)


def system_libraries():
    """name -> path, of what the linker of this machine finds."""
    lines = output_of("/sbin/ldconfig", "-p").splitlines()
    entries = [line.strip().split(" ") for line in lines if " => " in line]
    return {entry[0]: entry[-1] for entry in reversed(entries)}


class Binary:
    """What a library says of itself."""

    def __init__(self, path):
        self.needs = set(re.findall(r"NEEDED.*\[(.+)\]", output_of("readelf", "-dW", path)))
        self.defines, self.wants = set(), {}  # names; name -> version or ""
        for line in output_of("nm", "-D", path).splitlines():
            *_, kind, symbol = line.split()
            name, _, version = symbol.partition("@")
            if kind == "U":
                self.wants[name] = version.lstrip("@")
            else:
                self.defines.add(name)
        self.home_of_version = {}  # version -> library
        library = None
        for line in output_of("readelf", "-VW", path).splitlines():
            if found := re.search(r"File: (\S+)", line):
                library = found[1]
            elif library and (found := re.search(r"Name: (\S+)\s+Flags", line)):
                self.home_of_version[found[1]] = library


def find_missing(binaries, present):
    """(names of missing libraries, symbol -> version of what is defined nowhere)."""
    system = system_libraries()
    needed = set().union(*(binary.needs for binary in binaries)) - present
    defined = set().union(*(binary.defines for binary in binaries))
    for name in needed & set(system):
        defined |= Binary(system[name]).defines
    wanted = {name: version for binary in binaries for name, version in binary.wants.items()}
    symbols = {
        name: version
        for name, version in wanted.items()
        if name not in defined and C_NAME.fullmatch(name)
    }
    return sorted(needed - set(system)), symbols


def share_out(libraries, symbols, home_of_version):
    """library -> version or "" -> symbols. Any library will do for a symbol without a version."""
    shares = {library: defaultdict(list) for library in libraries}
    for version, library in home_of_version.items():
        if library in shares:
            shares[library][version] = []
    for symbol, version in sorted(symbols.items()):
        home = home_of_version.get(version)
        if home in shares:
            shares[home][version].append(symbol)
        else:
            shares[libraries[0]][""].append(symbol)
    return shares


def write_stand_in(path, symbols_of_version):
    source, versions = [], []
    for version, symbols in sorted(symbols_of_version.items()):
        for symbol in symbols:
            if GIVES_TEXT.search(symbol):
                source.append(f'const char* {symbol}(void) {{ return "no GPU: a stand-in"; }}')
            else:
                source.append(f"int {symbol}(void) {{ return 100; }}")
        if version:
            names = f"global: {'; '.join(symbols)};" if symbols else ""
            versions.append(f"{version} {{ {names} }};")
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch, "stand_in.c"), Path(scratch, "stand_in.lds")
        code.write_text("\n".join(source))
        script.write_text("\n".join(versions))
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}"]
        if versions:
            options.append(f"-Wl,--version-script={script}")
        subprocess.run(["gcc", *options, "-o", path, code], check=True)


def main():
    torch = Path(sys.argv[1], "torch")
    paths = [*torch.glob("lib/*.so*"), *torch.glob("_C*.so"), *map(Path, sys.argv[2:])]
    binaries = [Binary(path) for path in sorted(paths)]
    libraries, symbols = find_missing(binaries, {path.name for path in paths})
    home_of_version = {}
    for binary in binaries:
        home_of_version |= binary.home_of_version
    if libraries:
        for name, shared in share_out(libraries, symbols, home_of_version).items():
            write_stand_in(torch / "lib" / name, shared)
    print(f"{len(libraries)} libraries, {len(symbols)} symbols stood in for", file=sys.stderr)


if __name__ == "__main__":
    os.environ["PATH"] = "/usr/bin:/bin"
    main()
