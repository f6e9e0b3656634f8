# SPDX-License-Identifier: Apache-2.0
"""Prints what capi/abi/waybill.layout records of the header."""

import pathlib
import tempfile

import header

with tempfile.TemporaryDirectory() as folder:
    text = pathlib.Path("capi/waybill.h").read_text()
    print(header.layout(text, pathlib.Path(folder)), end="")
