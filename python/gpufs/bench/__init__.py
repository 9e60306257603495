"""Benchmarks of gpufs against the machine's limits and against programs without gpufs.

``gpufs bench`` runs them; so does this::

    with bench.World.make("auto", file=None, size=None, quick=True, tree=[], tell=print) as world:
        results = bench.run(["random"], world)
    print(results.to_json())

Each measurement is the median of several runs after a warm-up. The data is random and checked. Each
benchmark brings the file into the host's page cache, or out of it. Limits are measured in the same
run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Registers the benchmarks of the library, before the applications.
from gpufs.bench import (
    _benchmarks as _benchmarks,
)
from gpufs.bench import _results
from gpufs.bench._applications import GROUPS
from gpufs.bench._grep import default_tree
from gpufs.bench._measure import Measurement, Source, Task, measure, restated
from gpufs.bench._registry import BENCHMARKS, Benchmark
from gpufs.bench._report import compare, show
from gpufs.bench._results import Line, NotResultsError, Results, Table, read
from gpufs.bench._sources import Shared
from gpufs.bench._world import NotOursError, World


@dataclass(frozen=True)
class Progress:
    """The progress, reported before each measurement."""

    done: int
    total: int
    benchmark: str
    what: str


def run(
    names: Sequence[str],
    world: World,
    *,
    on_progress: Callable[[Progress], object] | None = None,
    on_line: Callable[[Results], object] | None = None,
    on_table: Callable[[Table], object] | None = None,
) -> Results:
    """Runs benchmarks in the order of ``names``. Returns the results.

    Args:
        names: names of benchmarks.
        world: the device and the files.
        on_progress: called before each measurement.
        on_line: called with all results so far after each line. A run may take long and may be
            interrupted.
        on_table: called with each complete table.

    Raises:
        KeyError: there is no benchmark of such a name.
        OSError: gpufs failed. A peer that fails is reported as absent.
    """
    shared = Shared()
    planned = [(BENCHMARKS[name], list(BENCHMARKS[name].make(world, shared))) for name in names]
    results = _results.begin(world)
    measured: dict[Source, Measurement] = {}
    all_sources = {
        task.source: None
        for _, cases in planned
        for case in cases
        for task in (case.ours, case.limit, *case.peers)
        if task is not None
    }

    def once(task: Task, benchmark: Benchmark) -> Measurement:
        if task.source not in measured:
            if on_progress is not None:
                on_progress(Progress(len(measured), len(all_sources), benchmark.name, task.name))
            measured[task.source] = measure(task, world.runs)
        return restated(measured[task.source], task)

    for benchmark, cases in planned:
        table = Table(benchmark.name, benchmark.title, benchmark.axis)
        results.benchmarks.append(table)
        for case in cases:
            table.lines.append(
                Line(
                    case.parameters,
                    None if case.ours is None else once(case.ours, benchmark),
                    None if case.limit is None else once(case.limit, benchmark),
                    case.target,
                    [once(peer, benchmark) for peer in case.peers],
                )
            )
            if on_line is not None:
                on_line(results)
        if on_table is not None:
            on_table(table)
    return results


__all__ = [
    "BENCHMARKS",
    "GROUPS",
    "Benchmark",
    "Line",
    "Measurement",
    "NotOursError",
    "NotResultsError",
    "Progress",
    "Results",
    "Table",
    "World",
    "compare",
    "default_tree",
    "read",
    "run",
    "show",
]
