"""The package and the library that it loads are of one version."""

import waybill


def test_the_version_is_that_of_the_library():
    assert waybill.version() == waybill.__version__ == "0.1.0"
