# SPDX-License-Identifier: Apache-2.0
"""Whole updates from and to the GPU's memory, in one process, every byte compared."""

import checks

checks.run_tests(checks.PROGRAMS / "gpu_updates", most_seconds=40)
