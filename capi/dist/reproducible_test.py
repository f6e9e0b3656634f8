# SPDX-License-Identifier: Apache-2.0
"""The SDK's tarball is the same, byte for byte, whoever makes it, where and when."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path


def make(folder, environment, umask, time):
    """As the rule does, in a folder of its own."""
    (folder / "capi").mkdir(parents=True)
    for file in ("capi/waybill.h", "capi/waybill.hpp", "capi/libwaybill.so.0", "LICENSE"):
        shutil.copyfile(file, folder / file)
        os.utime(folder / file, (time, time))
    tool = Path("tools/build_rules/make_sdk").absolute()
    options = ["--name=waybill", "--version=1.2.3", "--library=capi/libwaybill.so.0"]
    options += ["--header=capi/waybill.h", "--header=capi/waybill.hpp", "--license=LICENSE"]
    options += ["--compiled-in=nlohmann-json3-dev", "--out=sdk", "--tarball=waybill.tar.gz"]
    subprocess.run(
        [tool, *options], cwd=folder, env={**os.environ, **environment}, umask=umask, check=True
    )
    return folder / "waybill.tar.gz"


def test_it_is_the_same(tmp_path):
    one = make(tmp_path / "one", {"TZ": "UTC", "LC_ALL": "C.UTF-8"}, 0o022, 1e9)
    other = make(tmp_path / "so müde", {"TZ": "Pacific/Chatham", "LC_ALL": "C"}, 0o077, 1.2e9)
    described = [
        [(i.name, oct(i.mode), i.size, i.mtime, i.uname) for i in tarfile.open(file).getmembers()]
        for file in (one, other)
    ]
    assert described[0] == described[1]
    assert one.read_bytes() == other.read_bytes()
