# SPDX-License-Identifier: Apache-2.0
"""The stored vectors are what the definition gives."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import change_vectors


def test_stored_vectors_are_those_of_the_definition():
    stored = pathlib.Path(__file__).with_name("change_vectors.txt").read_text().splitlines()
    assert stored == list(change_vectors.vectors())
