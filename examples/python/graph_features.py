#!/usr/bin/env python3
"""Features of sampled neighbours for graph neural networks: two hops, gathered from files.

The graph is in CSR form. The start of each node's edges is in memory; the edges and the features
are in files. For each node of a batch the program draws some neighbours, and some of their
neighbours. The result has the node's own features, and the means over both hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import numpy.typing as npt
import support

Numbers = npt.NDArray[np.int64]


def make_graph(folder: Path, nodes: int, degree: int, width: int, seed: int) -> Numbers:
    """Writes ``edges.npy`` and ``features.raw``.

    Returns the start of each node's edges, and the end of the last node's.
    """
    random = np.random.default_rng(seed)
    degrees = 1 + random.geometric(1 / degree, nodes)  # every node has an edge
    starts = np.concatenate([[0], np.cumsum(degrees)])
    # Some nodes have many incoming edges.
    np.save(folder / "edges.npy", (nodes * random.random(int(starts[-1])) ** 2).astype(np.int64))
    random.standard_normal((nodes, width), np.float32).tofile(folder / "features.raw")
    return starts


class Sampler:
    """Draws neighbours, with NumPy's or PyTorch's arrays, from files or from memory."""

    def __init__(self, edges: Any, starts: Any, library: support.Library) -> None:  # noqa: ANN401
        self.edges = edges
        self.first, self.degree = starts[:-1], starts[1:] - starts[:-1]
        self.library = library

    def neighbours(self, nodes: Any, drawn: Any) -> Any:  # noqa: ANN401 - of either library
        """Returns a neighbour for each random number; ``drawn`` has them in its last dimension."""
        places = self.first[nodes][..., None] + drawn % self.degree[nodes][..., None]
        return self.library.take(self.edges[places])


def features_of(
    table: gpufs.FileArray | npt.NDArray[np.float32],
    sampler: Sampler,
    nodes: Any,  # noqa: ANN401 - of either library
    draws: tuple[Any, Any],
) -> tuple[list[Any], int]:
    """Returns the features of the nodes, and the means over both hops.

    Also returns the number of rows read.
    """
    one_hop = sampler.neighbours(nodes, draws[0])
    two_hops = sampler.neighbours(one_hop, draws[1])
    take = sampler.library.take
    made = [take(table[nodes]), take(table[one_hop]).mean(1), take(table[two_hops]).mean((1, 2))]
    return made, sum(int(np.prod(picked.shape)) for picked in (nodes, one_hop, two_hops))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the example."""
    options = support.parser(__doc__, cache="2MiB")
    options.add_argument("--nodes", type=int, default=20_000, help="of the graph")
    options.add_argument("--degree", type=int, default=10, help="neighbours of a node, on average")
    options.add_argument("--width", type=int, default=128, help="features of a node, of 4 bytes")
    options.add_argument("--batches", type=int, default=10, help="to sample")
    options.add_argument("--batch", type=int, default=256, help="nodes of a batch")
    options.add_argument(
        "--fanout", type=int, nargs=2, default=(10, 5), help="neighbours drawn at each hop"
    )
    chosen = options.parse_args(arguments)
    random = np.random.default_rng(chosen.seed + 1)
    with support.folder(chosen.folder) as folder:
        starts = make_graph(folder, chosen.nodes, chosen.degree, chosen.width, chosen.seed)
        paths = folder / "edges.npy", folder / "features.raw"
        edges_on_host = np.load(paths[0], mmap_mode="r")
        table_on_host = np.memmap(paths[1], np.float32, "r").reshape(chosen.nodes, chosen.width)
        with (
            support.mount_for(chosen, paths) as mount,
            mount.array(paths[0]) as edges,
            mount.array(paths[1], "float32", (-1, chosen.width)) as table,
        ):
            library, clock = support.Library.beside(mount), support.Clock(mount)
            print(
                f"{len(table):,} nodes, {len(edges):,} edges, {table.nbytes / 1e6:,.1f} MB of "
                f"features, {mount!r}, "
                f"means by {library.name}"
            )
            sampler = Sampler(edges, library.put(starts), library)
            host = support.Library(None, "cpu")
            sampler_on_host = Sampler(edges_on_host, starts, host)
            for number in support.steps(range(chosen.batches), chosen.batches, "batches"):
                nodes = random.integers(0, chosen.nodes, chosen.batch)
                shape = (chosen.batch, *chosen.fanout)
                draws = random.integers(0, 2**31, shape[:2]), random.integers(0, 2**31, shape)
                on_device = library.put(nodes), (library.put(draws[0]), library.put(draws[1]))
                with clock.running():
                    made, count = features_of(table, sampler, *on_device)
                clock.bytes += (
                    count * chosen.width * 4 + (draws[0].size + draws[1].size) * edges.itemsize
                )
                wanted, _ = features_of(table_on_host, sampler_on_host, nodes, draws)
                for hop, (got, right) in enumerate(zip(made, wanted, strict=True)):
                    support.check(library.back(got), right, f"batch {number}, hop {hop}")
            support.conclude(mount, clock, f"{chosen.batches * chosen.batch:,} nodes sampled")


if __name__ == "__main__":
    main()
