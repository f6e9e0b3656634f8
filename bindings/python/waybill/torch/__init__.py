# SPDX-License-Identifier: Apache-2.0
"""Records what a weight loader, or a trainer's export, copies in torch. `import waybill` does not import this package; torch is needed.

>>> import torch
>>> fused = torch.empty(6, 2, device="meta")
>>> def load(items):
...     for name, tensor in items:
...         fused.narrow(0, 4 if name == "k" else 0, len(tensor)).copy_(tensor)
>>> tensors = {"q": ((4, 2), "float32"), "k": ((2, 2), "float32")}
>>> [(part.tensor, part.at) for part in record(load, tensors, {"qk": fused}).parts()["qk"]]
[('k', (4, 0)), ('q', (0, 0))]
"""

from waybill.recording import Recording
from waybill.torch.exporting import record_export
from waybill.torch.loading import record
from waybill.torch.twin import meta_twin

__all__ = ["Recording", "meta_twin", "record", "record_export"]
