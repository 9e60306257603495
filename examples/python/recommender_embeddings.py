#!/usr/bin/env python3
"""Embedding lookups of a recommender: sums of rows from a table larger than the cache.

Ids follow a Zipf distribution, as clicks do: a few rows are requested repeatedly. Popular rows are
spread over the whole table, so a page rarely contains more than one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import support


def make_table(path: Path, rows: int, width: int, seed: int) -> None:
    """Writes the table, as a ``.npy`` file."""
    np.save(path, np.random.default_rng(seed).standard_normal((rows, width), np.float32))


def make_ids(
    batches: int, samples: int, lookups: int, rows: int, exponent: float, seed: int
) -> npt.NDArray[np.int64]:
    """Returns the requested rows: batch, sample, lookup."""
    random = np.random.default_rng(seed + 1)
    ranks = random.zipf(exponent, (batches, samples, lookups)) - 1
    return random.permutation(rows)[ranks % rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the example."""
    options = support.parser(__doc__, cache="4MiB")
    options.add_argument("--rows", type=int, default=40_000, help="of the table")
    options.add_argument("--width", type=int, default=64, help="numbers of a row, of 4 bytes")
    options.add_argument("--batches", type=int, default=20, help="to look up")
    options.add_argument("--samples", type=int, default=512, help="of a batch")
    options.add_argument(
        "--lookups", type=int, default=20, help="rows of a sample, which are added up"
    )
    options.add_argument(
        "--exponent", type=float, default=1.2, help="of the Zipf distribution, above 1"
    )
    options.add_argument(
        "--keep",
        choices=("auto", "always", "never"),
        default="auto",
        help="whether pages that were read stay cached",
    )
    chosen = options.parse_args(arguments)
    with support.folder(chosen.folder) as folder:
        path = folder / "table.npy"
        make_table(path, chosen.rows, chosen.width, chosen.seed)
        ids = make_ids(
            chosen.batches,
            chosen.samples,
            chosen.lookups,
            chosen.rows,
            chosen.exponent,
            chosen.seed,
        )
        on_host = np.load(path, mmap_mode="r")
        with support.mount_for(chosen, [path]) as mount, mount.array(path) as table:
            library, clock = support.Library.beside(mount), support.Clock(mount)
            print(f"{table.nbytes / 1e6:,.1f} MB of embeddings, {mount!r}, sums by {library.name}")
            for number, batch in enumerate(support.steps(ids, len(ids), "batches")):
                rows = library.put(batch)
                with clock.running():
                    pooled = library.take(table.take(rows, keep=chosen.keep)).sum(1)
                clock.bytes += batch.size * chosen.width * 4
                support.check(library.back(pooled), on_host[batch].sum(1), f"batch {number}")
            support.conclude(mount, clock, f"{ids.size:,} lookups")


if __name__ == "__main__":
    main()
