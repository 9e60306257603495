"""Plots of results: one figure a benchmark, as PNG and as PDF. Needs matplotlib (the extra ``gpufs[bench]``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpufs.bench._measure import Measurement, Value
from gpufs.bench._report import SIZES, parameter
from gpufs.bench._results import Line, Results, Table

SIZE_INCHES: Final = (6.0, 4.0)
PIXELS_PER_INCH: Final = 200


def check() -> None:
    """Raises ImportError, with what to do, where plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'gpufs[bench]'") from None


def draw(results: Results, folder: str | Path) -> list[Path]:
    """Draws every benchmark that has a row of values along its axis; returns what was written.

    Raises:
        ImportError: there is no matplotlib.
        OSError: the folder cannot be written.
    """
    check()
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for table in results.benchmarks:
        lines = [line for line in table.lines if line.ours is not None and line.ours.value is not None]
        # What is not a number has no place on an axis.
        if len({x for line in lines if isinstance(x := line.parameters.get(table.axis), int)}) < 2:
            continue
        figure = _draw(results, table, lines)
        for suffix in ("png", "pdf"):
            path = Path(folder, f"{table.name}.{suffix}")
            figure.savefig(path, dpi=PIXELS_PER_INCH, bbox_inches="tight")
            written.append(path)
    return written


def _draw(results: Results, table: Table, lines: Sequence[Line]) -> Any:  # noqa: ANN401 - matplotlib has no types here
    # Not through pyplot, which would look for a display and keep every figure.
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=SIZE_INCHES)
    axes = figure.add_subplot()
    series = _series(table, lines)
    for label, (style, points) in series.items():
        points.sort()
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
    ticks = sorted({x for _, points in series.values() for x, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [parameter(table.axis, int(x)) for x in ticks], rotation=30)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"{table.axis} size" if table.axis in SIZES else table.axis)
    unit = next(line.ours.unit for line in lines if line.ours is not None)
    axes.set_ylabel(unit)
    axes.set_title(f"{table.title}\n{results.device_name}", fontsize=9)
    axes.grid(which="both", alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1))
    return figure


_Points = list[tuple[float, float]]


def _series(table: Table, lines: Sequence[Line]) -> dict[str, tuple[dict[str, Any], _Points]]:
    """Returns what is drawn, by label: ours thick, limits as dashed lines, peers thin."""
    series: dict[str, tuple[dict[str, Any], _Points]] = {}

    def add(measurement: Measurement | None, x: Value, label: str, style: dict[str, Any]) -> None:
        if measurement is not None and measurement.value is not None and isinstance(x, int):
            series.setdefault(label, (style, []))[1].append((x, measurement.value))

    for line in lines:
        x = line.parameters[table.axis]
        # Numbers in a name (threads) change along the axis: they do not make another series.
        kind = ", ".join(
            str(value) for name, value in line.parameters.items() if name != table.axis and value != "gpufs"
        )
        suffix = f" ({kind})" if kind else ""
        add(line.ours, x, f"gpufs{suffix}", {"marker": "o", "linewidth": 2})
        if line.limit is not None:
            name = f"limit: {line.limit.name.split(',')[0]}{suffix}"
            add(line.limit, x, name, {"linestyle": "--", "marker": "_", "linewidth": 1.2})
        for peer in line.peers:
            add(peer, x, f"{peer.name.split(',')[0]}{suffix}", {"marker": ".", "linewidth": 0.8})
    return series
