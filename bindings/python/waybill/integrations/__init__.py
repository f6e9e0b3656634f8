# SPDX-License-Identifier: Apache-2.0
"""Waybill inside the stacks of reinforcement learning, a package each. `import waybill` imports none of them."""
