# SPDX-License-Identifier: Apache-2.0
"""grow.py OUT SOURCE...: the sources as of a later release, in which every struct has a field more."""

import pathlib
import sys

import header

out = pathlib.Path(sys.argv[1])
for name in sys.argv[2:]:
    text = pathlib.Path(name).read_text().replace('"capi/', '"capi/abi/grown/')
    if name == "capi/waybill.h":
        text = header.with_one_more_field(text)
    (out / pathlib.Path(name).name).write_text(text)
