# SPDX-License-Identifier: Apache-2.0
"""Where vLLM's own loader puts every element: recorded results of vLLM 0.33.0, run without a GPU, for tests.

In each file `source` has the number of each tensor's first element and the tensor's shape, with elements numbered from 1
over the whole checkpoint; `dest` has the shapes of one rank's parameters; `runs` has [offset in the parameter, number
of the source element, length], and elements in no run are padding.
"""

import json
from pathlib import Path


def golden_map(name):
    return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
