# SPDX-License-Identifier: Apache-2.0
"""Every example in a docstring is true, and everything public has a docstring."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import waybill

MODULES = [
    importlib.import_module(f"waybill.{module.name}")
    for module in pkgutil.iter_modules(waybill.__path__)
    if module.name not in ("__main__", "_waybill", "torch") and not module.name.endswith("_test")
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples(module):
    names = {**vars(waybill), **vars(module)}
    assert doctest.testmod(module, extraglobs=names).failed == 0


def public(thing):
    """The thing, and what it has that is not inherited and not private."""
    yield thing
    if inspect.isclass(thing):
        for name, member in vars(thing).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                yield member


@pytest.mark.parametrize("name", waybill.__all__)
def test_a_docstring(name):
    for thing in public(getattr(waybill, name)):
        assert inspect.getdoc(thing), thing
