"""Figures 3 to 5: copies between host and GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

from gpufs.sizes import format_size

from gdev.bench import _programs
from gdev.bench._changes import Change, change
from gdev.bench._results import Layout, Part, Results, print_part

WAYS: Final = {"to_device": "to device", "to_host": "to host"}
# The paper's figures, in bytes: the best chunk, and up to where direct I/O is faster than DMA.
PAPER_CHUNK: Final = 4 << 20
PAPER_DIRECT: Final = {"to_device": 4 << 10, "to_host": 1 << 10}
# What tells one measurement of a run from the others.
_AXES: Final = ("test", "direction", "memory", "bytes", "chunk")


def measure(most: int, runs: int, vgpu: str, results: Results) -> list[str]:
    """Measures the copies, alone and under gdev in turn, and prints the medians of the runs.

    Returns the faults, one line each. Raises OSError.
    """
    program = _programs.find("copies")
    environments = _programs.environments(vgpu)
    seconds: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for run in range(runs):
        for kind, environment in _programs.in_turn(environments, run):
            outcome = _programs.run(program, ["--most", most], environment)
            results.runs += [{"kind": kind, "run": run, **line} for line in outcome.lines]
            if not outcome.is_right:
                return [f"copies: {kind}: {outcome.fault}"]
            for line in outcome.lines:
                key = tuple(line.get(axis) for axis in _AXES)
                kinds = seconds.setdefault(key, {one: [] for one in environments})
                kinds[kind].append(line["seconds"])
    for key, kinds in seconds.items():
        pairs = zip(kinds[_programs.ALONE], kinds[_programs.GDEV], strict=True)
        found = change([[pair] for pair in pairs])
        row = dict(zip(_AXES, key, strict=True))
        row |= {kind: median(all_of_it) for kind, all_of_it in kinds.items()}
        row |= {"ratio": found.ratio, "low": found.low, "high": found.high}
        results.summary.append(row)
    for part in parts({"summary": results.summary}):
        print_part(part)
    return []


def parts(result: dict[str, Any]) -> list[Part]:
    """Returns the tables of a stored result."""
    by_test = {
        test: [one for one in result["summary"] if one["test"] == test]
        for test in ("chunk", "small", "size")
    }
    widths = {"size": 9, "direction": 9, "memory": 8, "alone": 11, "gdev": 11, "change": 22}

    def layout(title: str, speed: Callable[[dict[str, Any], str], str], **first: int) -> Layout:
        return Layout(title, first | widths, partial(_cells, speed=speed, with_chunk=bool(first)))

    return [
        Part(
            layout("Copies in chunks through pinned memory (figure 3)", _rate, chunk=9),
            by_test["chunk"],
            _best_chunks(by_test["chunk"]),
        ),
        Part(
            layout("Small copies: by the driver, and by a kernel's own accesses (figure 4)", _time),
            by_test["small"],
            _crossings(by_test["small"]),
        ),
        Part(layout("Copies by their size (figure 5)", _rate), by_test["size"]),
    ]


def _cells(
    row: dict[str, Any], speed: Callable[[dict[str, Any], str], str], with_chunk: bool
) -> tuple[str, ...]:
    return (
        *([format_size(row["chunk"])] if with_chunk else []),
        format_size(row["bytes"]),
        WAYS[row["direction"]],
        row["memory"],
        *(speed(row, kind) for kind in (_programs.ALONE, _programs.GDEV)),
        str(Change(row["ratio"], row["low"], row["high"])),
    )


def _rate(row: dict[str, Any], kind: str) -> str:
    return f"{row['bytes'] / row[kind] / 1e9:6.2f} GB/s"


def _time(row: dict[str, Any], kind: str) -> str:
    return f"{row[kind] * 1e6:8.2f} us"


def _best_chunks(rows: list[dict[str, Any]]) -> str:
    found = []
    for size in sorted({row["bytes"] for row in rows}):
        for direction, way in WAYS.items():
            ours = [row for row in rows if (row["bytes"], row["direction"]) == (size, direction)]
            best = min(ours, key=lambda row: float(row[_programs.ALONE]))["chunk"]
            found.append(f"{format_size(best)} {way} ({format_size(size)})")
    return f"Best chunk: {', '.join(found)}. The paper's: {format_size(PAPER_CHUNK)} for both."


def relative_speeds(rows: list[dict[str, Any]], direction: str) -> list[tuple[int, float]]:
    """Returns sizes, and how many times as fast as DMA a kernel's own accesses are, alone."""
    times = {
        (row["memory"], row["bytes"]): float(row[_programs.ALONE])
        for row in rows
        if row["test"] == "small" and row["direction"] == direction
    }
    return [
        (size, times["pinned", size] / seconds)
        for (memory, size), seconds in sorted(times.items())
        if memory == "kernel" and ("pinned", size) in times
    ]


def _crossings(rows: list[dict[str, Any]]) -> str:
    found = []
    for direction, way in WAYS.items():
        faster = [size for size, speed in relative_speeds(rows, direction) if speed > 1]
        ours = f"up to {format_size(max(faster))}" if faster else "nowhere"
        paper = format_size(PAPER_DIRECT[direction])
        found.append(f"{ours} {way} (the paper: up to {paper})")
    return f"Direct accesses are faster than DMA (pinned): {', '.join(found)}."
