"""Figures 12 and 13: searches that together have more text than the GPU has memory."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpufs.sizes import format_size

from gdev import _daemon
from gdev.bench import _programs
from gdev.bench._results import Layout, Part, Results, Table

# How long the daemon may need to see that programs have ended.
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What is measured. Sizes are bytes."""

    size: int
    large: int
    """The text of the search that runs all the time; 0: none runs."""
    repeats: int
    memory: int
    """What the virtual GPUs have together."""
    counts: list[int]
    vgpus: list[int]

    def settings(self) -> dict[str, Any]:
        """Returns it for the file of the results."""
        return asdict(self)


@dataclass(frozen=True)
class Makespan:
    """What came of some searches at once."""

    seconds: float
    """From the first begin to the last end of those that finished; 0 if none did."""
    finished: int
    faults: list[str]
    """One for each that failed, or counted wrong."""


def measure(plan: Plan, results: Results) -> list[str]:
    """Measures all makespans, without gdev and for each number of virtual GPUs, and prints them.

    Returns the faults, one line each. Raises OSError.
    """
    program = _programs.find("search")
    table = Table(_layout(plan.settings()))
    faults = []
    for vgpus in (0, *plan.vgpus):
        with _virtual_gpus(vgpus, plan.memory) as names:
            small, large = _environments(names)
            for count in plan.counts:
                found = _makespan(program, plan, count, (small, large), results, vgpus)
                about = f"{count} at once, " + (f"{vgpus} virtual GPUs" if vgpus else "no gdev")
                faults += [f"search: {about}: {fault}" for fault in found.faults]
                results.summary.append({"vgpus": vgpus, "searches": count, **asdict(found)})
                table.row(results.summary[-1])
    return faults


def parts(result: dict[str, Any]) -> list[Part]:
    """Returns the tables of a stored result."""
    return [Part(_layout(result["settings"]), result["summary"])]


def _layout(settings: dict[str, Any]) -> Layout:
    large = settings["large"]
    beside = f" beside one of {format_size(large)}" if large else ""
    return Layout(
        f"Searches of {format_size(settings['size'])}{beside} (figures 12 and 13)",
        {"vgpus": 8, "searches": 8, "makespan": 10, "finished": 8, "paper": 0},
        _cells,
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(row["vgpus"]) if row["vgpus"] else "no gdev",
        str(row["searches"]),
        f"{row['seconds']:8.3f} s" if row["finished"] else "-",
        f"{row['finished']}",
        _paper(row["vgpus"], row["searches"]),
    )


def _paper(vgpus: int, count: int) -> str:
    """Returns what the paper says of 128 MB and 1 GB on a GPU of 1.6 GB."""
    if vgpus == 0 and count > 1:
        return "fails (NVIDIA)"
    return "finishes"


def _environments(names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the environments of the searches and of the large one."""
    if not names:
        return dict(os.environ), dict(os.environ)
    small, large = (_programs.environments(name)[_programs.GDEV] for name in (names[0], names[-1]))
    return small, large


@contextlib.contextmanager
def _virtual_gpus(count: int, memory: int) -> Iterator[list[str]]:
    """Adds virtual GPUs with equal parts of the memory. Removes them at the end. Raises OSError."""
    names = [f"bench-v{i + 1}" for i in range(count)]
    if not names:
        yield names
        return
    limit = memory // count
    with _daemon.connect(start=True) as daemon:
        for name in names:
            try:
                daemon.ask(_daemon.ADD, name, limit, os.getuid())
            except FileExistsError:  # of a benchmark that was killed
                daemon.ask(_daemon.SET, name, limit, _daemon.UNCHANGED)
    try:
        yield names
    finally:
        with _daemon.connect(start=True) as daemon:
            for name in names:
                _remove(daemon, name)


def _remove(daemon: _daemon.Daemon, name: str) -> None:
    end = time.monotonic() + _END_TIMEOUT_S
    while True:
        try:
            daemon.ask(_daemon.REMOVE, name)
            return
        except OSError as error:
            # The programs have ended, and the daemon sees it a moment later.
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
        time.sleep(0.01)


def _makespan(
    program: Path,
    plan: Plan,
    count: int,
    environments: tuple[dict[str, str], dict[str, str]],
    results: Results,
    vgpus: int,
) -> Makespan:
    """Runs some searches at once, while the large one runs."""
    small, large = environments
    outcomes: list[tuple[str, _programs.Outcome]] = []
    with contextlib.ExitStack() as running:
        beside = None
        if plan.large:
            # 0 repeats: until it is asked to end.
            arguments = ["--bytes", plan.large, "--repeats", 0, "--seed", 0]
            beside = running.enter_context(_programs.Process(program, arguments, large))
            beside.wait_for_line()  # its text is in the GPU's memory
        processes = []
        for seed in range(1, count + 1):
            arguments = ["--bytes", plan.size, "--repeats", plan.repeats, "--seed", seed]
            process = _programs.Process(program, arguments, small)
            processes.append(running.enter_context(process))
        outcomes += [(f"number {i}", one.outcome()) for i, one in enumerate(processes, 1)]
        if beside is not None:
            beside.terminate()
            outcomes.insert(0, ("the large one", beside.outcome()))
    times = []
    faults = []
    for name, outcome in outcomes:
        results.runs += [
            {"vgpus": vgpus, "searches": count, "search": name, **line} for line in outcome.lines
        ]
        if not outcome.is_right:
            faults.append(f"{name}: {outcome.fault}")
        elif name != "the large one":
            times.append(outcome.lines[-1])
    seconds = 0.0
    if times:
        first = min(float(one["start"]) for one in times)
        seconds = max(float(one["end"]) for one in times) - first
    return Makespan(seconds, len(times), faults)
