"""Trains with JAX, and counts launches twice: by CUPTI (JAX's profiler), and by gdev.

Prints a line of JSON. Exit status: 0 if both counts are equal and gdev knew all functions.
"""

from __future__ import annotations

import collections
import sys
import tempfile
from pathlib import Path

import jax
import jax_training
from seen import compare, status


def count_launches(folder: Path) -> collections.Counter[str]:
    """Returns how often the program called each function that launches."""
    found: collections.Counter[str] = collections.Counter()
    for file in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    if event.name.startswith("cu") and "Launch" in event.name:
                        found[event.name] += 1
    return found


def main() -> int:
    layers = jax_training.make(0, 512, 4)
    data = jax.random.normal(jax.random.key(1), (64, 512))
    for _ in range(3):  # compiles, and makes graphs
        layers, loss = jax_training.step(layers, data)
    jax.block_until_ready(loss)
    with tempfile.TemporaryDirectory() as folder:
        before = status()
        with jax.profiler.trace(folder):
            for _ in range(50):
                layers, loss = jax_training.step(layers, data)
            jax.block_until_ready(loss)
        after = status()
        launches = count_launches(Path(folder))
    return compare({"result": float(loss).hex()}, before, after, launches)


if __name__ == "__main__":
    sys.exit(main())
