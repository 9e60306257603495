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

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

# Registers the benchmarks of the library, before the applications.
from gpufs.bench import (
    _benchmarks as _benchmarks,
)
from gpufs.bench import _results
from gpufs.bench._applications import APPLICATIONS
from gpufs.bench._durations import expected_s
from gpufs.bench._grep import default_tree
from gpufs.bench._measure import Case, Measurement, Source, Task, measure, restated
from gpufs.bench._registry import BENCHMARKS, Benchmark
from gpufs.bench._report import compare
from gpufs.bench._results import Line, NotResultsError, Results, Table, read
from gpufs.bench._rows import Rows, show
from gpufs.bench._sources import Shared
from gpufs.bench._world import NotOursError, World

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "library": tuple(name for name in BENCHMARKS if name not in APPLICATIONS),
    "apps": APPLICATIONS,
    "all": tuple(BENCHMARKS),
}
"""Names for several benchmarks at once."""

TOUR: Final = "library"
"""The group that is measured if none is named."""

TOUR_BYTES: Final = 2 << 30
"""The largest default size of a file if no benchmark is named."""

TOUR_S: Final = 600.0
"""The time in which a run ends if no benchmark is named."""


@dataclass(frozen=True)
class Progress:
    """The progress, reported before each measurement."""

    done: int
    total: int
    benchmark: str
    what: str


class _OutOfTimeError(Exception):
    """The deadline has passed in the middle of a line."""


def run(
    names: Sequence[str],
    world: World,
    *,
    deadline: float | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_table: Callable[[Table, Sequence[Case]], object] | None = None,
    on_line: Callable[[Results, Line], object] | None = None,
    on_table_end: Callable[[Table], object] | None = None,
) -> Results:
    """Runs benchmarks in the order of ``names``. Returns the results.

    Args:
        names: names of benchmarks.
        world: the device and the files.
        deadline: on the clock of ``time.monotonic``; None: there is none. A benchmark that is
            expected to end later is left out, and so are the lines of a slow one. No measurement
            begins after it. The results say which benchmarks these are.
        on_progress: called before each measurement.
        on_table: called with each table before it is measured, and with its planned cases.
        on_line: called with all results so far, and their new line, after each line. A run may
            take long and may be interrupted.
        on_table_end: called with each table after its last line.

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
            if deadline is not None and time.monotonic() > deadline:
                raise _OutOfTimeError
            if on_progress is not None:
                on_progress(Progress(len(measured), len(all_sources), benchmark.name, task.name))
            measured[task.source] = measure(task, world.runs)
        return restated(measured[task.source], task)

    def measure_case(case: Case, benchmark: Benchmark) -> Line:
        return Line(
            case.parameters,
            None if case.ours is None else once(case.ours, benchmark),
            None if case.limit is None else once(case.limit, benchmark),
            case.target,
            [once(peer, benchmark) for peer in case.peers],
        )

    for benchmark, cases in planned:
        begin = time.monotonic()
        expected = expected_s(benchmark.name, world.device, world.quick, world.file_bytes)
        if deadline is not None and begin + expected > deadline:
            results.left_out.append(benchmark.name)
            continue
        table = Table(benchmark.name, benchmark.title, benchmark.axis)
        results.benchmarks.append(table)
        if on_table is not None:
            on_table(table, cases)
        longest_s = 0.0  # of the lines so far; the next one is expected to take as long
        for case in cases:
            before = time.monotonic()
            if deadline is not None and before + longest_s > deadline:
                results.left_out.append(benchmark.name)
                break
            try:
                line = measure_case(case, benchmark)
            except _OutOfTimeError:
                results.left_out.append(benchmark.name)
                break
            table.lines.append(line)
            longest_s = max(longest_s, time.monotonic() - before)
            if len(table.lines) == len(cases):
                table.wall_s = time.monotonic() - begin
            if on_line is not None:
                on_line(results, line)
        if on_table_end is not None:
            on_table_end(table)
    return results


__all__ = [
    "BENCHMARKS",
    "GROUPS",
    "TOUR",
    "TOUR_BYTES",
    "TOUR_S",
    "Benchmark",
    "Line",
    "Measurement",
    "NotOursError",
    "NotResultsError",
    "Progress",
    "Results",
    "Rows",
    "Table",
    "World",
    "compare",
    "default_tree",
    "expected_s",
    "read",
    "run",
    "show",
]
