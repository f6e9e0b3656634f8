"""The stored vectors are what numpy and ml_dtypes give."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import quantise_vectors


def test_stored_vectors_are_those_of_the_definitions():
    stored = pathlib.Path(__file__).with_name("quantise_vectors.txt").read_text().splitlines()
    assert stored == list(quantise_vectors.vectors())
