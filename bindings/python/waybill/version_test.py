# SPDX-License-Identifier: Apache-2.0
"""The package and the library that it loads are of one version."""

import re

import waybill


def test_the_version_is_that_of_the_library():
    assert waybill.version() == waybill.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", waybill.version())
