"""The options of the trainings of this folder."""

from __future__ import annotations

import argparse


def parse(description: str | None, hidden: int, batch: int) -> argparse.Namespace:
    """Returns what the command line says, or what is standard."""
    parser = argparse.ArgumentParser(description=description)
    standards = {"hidden": hidden, "layers": 12, "steps": 60, "batch": batch, "seed": 0}
    for name, standard in standards.items():
        parser.add_argument(f"--{name}", type=int, default=standard)
    parser.add_argument(
        "--start", type=float, default=0.0, help="when the steps begin, in Unix time"
    )
    return parser.parse_args()
