"""Budgets of tests with random work.

As tests/support/work_budget.hpp, with the same environment variables.

    for seed in work_budget("test_fuzz.npy", usual=20, unit="inputs", replay=...):

Environment: GPUFS_TEST_SEED (the first seed), GPUFS_TEST_SEED_COUNT (how many steps),
GPUFS_TEST_SECONDS (begin steps until this time is over; overrides the count), GPUFS_TEST_STEP_FILE
(a file that has the replay of the step under way).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path


def work_budget(test: str, usual: int, unit: str, of_step: int) -> Iterator[int]:
    """Yields the steps' seeds; prints at the end what was covered. A step does `of_step` units.

    `test` is what pytest is asked for to run it again: ``FILE::FUNCTION``.
    """
    first = int(os.environ.get("GPUFS_TEST_SEED", "1"))
    steps = int(
        os.environ.get(
            "GPUFS_TEST_SEED_COUNT", "1" if "GPUFS_TEST_SEED" in os.environ else str(usual)
        )
    )
    seconds = os.environ.get("GPUFS_TEST_SECONDS")
    step_file = os.environ.get("GPUFS_TEST_STEP_FILE")
    end = time.monotonic() + float(seconds or 0)
    begun = 0
    try:
        while time.monotonic() < end if seconds else begun < steps:
            seed = first + begun
            begun += 1
            if step_file:
                Path(step_file).write_text(f"{replay(test, seed)}\n")
            try:
                yield seed
            except GeneratorExit:
                print(replay(test, seed))  # the loop has failed
                raise
    finally:
        print(
            f"covered: {test}: {begun} steps (seeds {first} to {first + begun - 1}), "
            f"{begun * of_step} {unit}"
        )


def replay(test: str, seed: int) -> str:
    """Returns the command that repeats a step."""
    return f"replay: GPUFS_TEST_SEED={seed} GPUFS_TEST_SEED_COUNT=1 python3 -m pytest {test}"
