"""Figures 3 to 5: copies between host and GPU."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

from gpufs.sizes import format_size

from gdev.bench import _programs
from gdev.bench._results import Results, Table

# What the program measures, and what the paper's text says of it.
_TITLES: Final = {
    "chunk": "Copies in chunks through pinned memory (figure 3; the paper's best chunk: 4 MB)",
    "small": "Small copies (figure 4; the paper: direct I/O is faster than DMA up to 4 KB to the "
    "device,\nand up to 1 KB to the host)",
    "size": "Copies by their size (figure 5)",
}
_WAYS: Final = {"to_device": "to device", "to_host": "to host"}
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
        for kind, environment in environments.items():
            outcome = _programs.run(program, ["--most", most], environment)
            results.runs += [{"kind": kind, "run": run, **line} for line in outcome.lines]
            if not outcome.is_right:
                return [f"copies: {kind}: {outcome.fault}"]
            for line in outcome.lines:
                key = tuple(line.get(axis) for axis in _AXES)
                kinds = seconds.setdefault(key, {one: [] for one in environments})
                kinds[kind].append(line["seconds"])
    results.summary = [
        dict(zip(_AXES, key, strict=True)) | {kind: median(found) for kind, found in kinds.items()}
        for key, kinds in seconds.items()
    ]
    for test in _TITLES:
        _print_test(test, [one for one in results.summary if one["test"] == test])
    return []


def _print_test(test: str, measured: list[dict[str, Any]]) -> None:
    table = Table(_TITLES[test], size=9, direction=9, memory=8, alone=11, gdev=11, ratio=5)
    for one in measured:
        table.row(
            format_size(one["chunk" if test == "chunk" else "bytes"]),
            _WAYS[one["direction"]],
            one["memory"],
            *(_speed(test, one["bytes"], one[kind]) for kind in (_programs.ALONE, _programs.GDEV)),
            f"{one[_programs.GDEV] / one[_programs.ALONE]:5.3f}",
        )
    if test == "chunk" and measured:
        print("\nbest chunk:", ", ".join(f"{_best(measured, way)} {_WAYS[way]}" for way in _WAYS))
    print()


def _speed(test: str, size: int, seconds: float) -> str:
    if test == "small":
        return f"{seconds * 1e6:8.2f} us"
    return f"{size / seconds / 1e9:6.2f} GB/s"


def _best(measured: list[dict[str, Any]], way: str) -> str:
    ours = [one for one in measured if one["direction"] == way]
    return format_size(min(ours, key=lambda one: float(one[_programs.ALONE]))["chunk"])
