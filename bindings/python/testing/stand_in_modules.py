# SPDX-License-Identifier: Apache-2.0
"""Modules in the place of packages that a test does not have."""

import sys
import types


def stand_in(monkeypatch, name, **contents):
    """Returns a module that is imported by that name until the test ends; it can have modules in it."""
    made = types.ModuleType(name)
    made.__dict__.update(contents)
    made.__path__ = []
    monkeypatch.setitem(sys.modules, name, made)
    return made
