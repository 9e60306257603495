"""Turns on the GPU: the daemon's decisions, driven by simulated clients in virtual time."""

from __future__ import annotations

import os

from .gdev_daemon import seed_of_test
from .simulated_gpu import Gpu


def test_the_daemons_decisions_hold_with_random_clients(gpu: Gpu) -> None:
    runs = 1 if "GDEV_TEST_SEED" in os.environ else 300
    process = gpu.run("turns_model", str(seed_of_test()), str(runs), under_gdev=False)
    assert process.returncode == 0, process.stdout
