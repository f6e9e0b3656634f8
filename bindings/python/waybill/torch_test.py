"""The binding and torch live in one process, whichever comes first."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("order", ["torch, waybill", "waybill, torch"])
def test_either_may_be_imported_first(order):
    code = f"import {order}; print(waybill.version(), torch.ones(2).sum().item())"
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said == "0.1.0 2.0\n"
