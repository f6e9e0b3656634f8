"""Waybill inside the stacks of reinforcement learning, a package each. `import waybill` imports none of them."""
