# SPDX-License-Identifier: Apache-2.0
"""Sets the environment in which SGLang runs without a GPU and without a network. Import it before SGLang."""

import os

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    SGLANG_USE_CPU_ENGINE="1",
    SGLANG_NCCL_SO_PATH="/absent",  # torch's stand-in for NCCL looks like NCCL.
)
