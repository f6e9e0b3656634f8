"""A short drill on each fabric; `random_drill` runs for as long as asked."""

import pytest
import random_drill


@pytest.mark.parametrize("fabric", ["local", "tcp"])
def test_a_job_recovers_from_processes_that_are_killed_and_stopped(fabric):
    rounds, _ = random_drill.drill(seed=1, fabric=fabric, seconds=12)
    assert rounds > 0
