"""Plots of results as SVG, like the paper's figures, with what its text says of them.

They need matplotlib (the extra ``gpufs[bench]``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpufs import _plot_style as style
from gpufs.sizes import format_size

from gdev.bench import _copies, _dataflow, _micro
from gdev.bench._programs import ALONE, GDEV

_WIDTH: Final = 3.4  # inches, of a panel
_HEIGHT: Final = 2.4
_TICKS_MAX: Final = 6
_PAPER: Final = "#c92a2a"
# By how many virtual GPUs there are; the last one for more.
_VGPUS: Final = (style.LIMIT, style.OURS, "#099268", "#e08a00", "#6741d9")
_KINDS: Final = {ALONE: (style.LIMIT, "without gdev"), GDEV: (style.OURS, "gdev")}

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class _Axis:
    """An axis whose values grow by factors: how they are printed."""

    label: str
    text: Callable[[int], str] = str


_BYTES: Final = _Axis("", format_size)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws a stored result.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    style.check()
    import matplotlib

    figure = _FIGURES[result["benchmark"]](result["summary"])
    figure.suptitle(_machine(result), fontsize=style.TEXT, x=0.01, y=1, ha="left", va="bottom")
    # Text stays text, and the same result gives the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gdev"}):
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})


def _machine(result: dict[str, Any]) -> str:
    gpus = result["machine"]["gpus"]
    return f"{gpus[0]['name'] if gpus else 'no GPU'}; gdev bench {result['benchmark']}"


# --- The benchmarks ---


def _micro_figure(rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401 - matplotlib has no types here
    """Figure 6: bars of what gdev costs, with their intervals."""
    figure = style.new_figure(_WIDTH * 2, _HEIGHT)
    axes = figure.subplots()
    style.plain_axes(axes)
    changes = [(row["ratio"] - 1) * 100 for row in rows]
    below = [(row["ratio"] - row["low"]) * 100 for row in rows]
    above = [(row["high"] - row["ratio"]) * 100 for row in rows]
    places = range(len(rows))
    axes.bar(places, changes, color=style.OURS, width=0.6)
    axes.errorbar(places, changes, [below, above], fmt="none", ecolor=style.LIMIT, linewidth=1)
    names = [row["program"] for row in rows]
    axes.set_xticks(list(places), names, rotation=45, ha="right")
    axes.set_ylabel("longer under gdev, %", fontsize=style.SMALL_TEXT)
    said: dict[str, list[str]] = {}
    for name in names:
        if _micro.PAPER.get(name, "-") != "-":
            said.setdefault(_micro.PAPER[name], []).append(name)
    text = "; ".join(f"{what}: {', '.join(those)}" for what, those in said.items())
    axes.set_title(f"Paper (figure 6): {text}", fontsize=style.SMALL_TEXT, loc="left")
    return figure


def _copies_figure(rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401
    """Figures 3 to 5, a panel for each direction."""
    figure, panels = _panels(3, 2)
    for column, (direction, way) in enumerate(_copies.WAYS.items()):
        own = [row for row in rows if row["direction"] == direction]
        chunks = [row for row in own if row["test"] == "chunk"]
        series = {}
        for size in sorted({row["bytes"] for row in chunks}):
            for kind, (color, name) in _KINDS.items():
                points = [(r["chunk"], r[kind] * 1e3) for r in chunks if r["bytes"] == size]
                series[f"{format_size(size)}, {name}"] = _Line(points, color)
        _lines(panels[0][column], series, _BYTES, "ms")
        _mark(panels[0][column], _copies.PAPER_CHUNK, "paper's best")
        panels[0][column].set_title(f"chunk, {way} (figure 3)", fontsize=style.TEXT, loc="left")

        speeds = _Line([*_copies.relative_speeds(own, direction)], style.LIMIT)
        _lines(panels[1][column], {"kernel": speeds}, _BYTES, "times the speed of DMA")
        _mark(panels[1][column], _copies.PAPER_DIRECT[direction], "equal in the paper")
        panels[1][column].set_title(
            f"direct access, {way} (figure 4)", fontsize=style.TEXT, loc="left"
        )

        series = {}
        for memory in ("pageable", "pinned"):
            of_memory = [r for r in own if (r["test"], r["memory"]) == ("size", memory)]
            for kind, (color, name) in _KINDS.items():
                points = [(r["bytes"], r["bytes"] / r[kind] / 1e9) for r in of_memory]
                series[f"{memory}, {name}"] = _Line(points, color)
        _lines(panels[2][column], series, _BYTES, "GB/s")
        panels[2][column].set_title(f"copy, {way} (figure 5)", fontsize=style.TEXT, loc="left")
    return figure


def _dataflow_figure(rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401
    """Figure 11: a panel for each dataflow; pinned memory is dashed."""
    cases = sorted({(row["graph"], row["operation"]) for row in rows}, reverse=True)
    figure, panels = _panels((len(cases) + 1) // 2, min(2, len(cases)))
    every = [axes for line in panels for axes in line]
    for axes in every[len(cases) :]:
        axes.set_visible(False)
    colors = {
        _dataflow.ALONE: style.LIMIT,
        _dataflow.COPIED: "#d9480f",
        _dataflow.SHARED: style.OURS,
    }
    for axes, (graph, operation) in zip(every, cases, strict=False):
        series = {}
        for memory in ("pageable", "pinned"):
            own = [
                row
                for row in rows
                if (row["graph"], row["operation"], row["memory"]) == (graph, operation, memory)
            ]
            for way, color in colors.items():
                points = [(row["side"], row[way] * 1e3) for row in own]
                series[f"{way}, {memory}"] = _Line(points, color, memory == "pinned")
        for (its_graph, its_operation, side), times in _dataflow.PAPER.items():
            if (its_graph, its_operation) == (graph, operation):
                for way, seconds in zip(("copied", "shared"), times, strict=True):
                    series[f"paper, {way}"] = _Line([(side, seconds * 1e3)], _PAPER)
        _lines(axes, series, _Axis("rows of a matrix"), "ms")
        axes.set_title(f"{graph}, {operation} (figure 11)", fontsize=style.TEXT, loc="left")
    return figure


def _search_figure(rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401
    """Figures 12 and 13: makespans by how many searches run; a cross where some did not finish."""
    figure, panels = _panels(1, 1)
    axes = panels[0][0]
    series = {}
    for vgpus in sorted({row["vgpus"] for row in rows}):
        own = [row for row in rows if row["vgpus"] == vgpus and row["finished"]]
        color = _VGPUS[min(vgpus, len(_VGPUS) - 1)]
        name = f"virtual GPUs: {vgpus}" if vgpus else "without gdev"
        series[name] = _Line([(row["searches"], row["seconds"]) for row in own], color)
        for row in own:
            if row["finished"] < row["searches"]:
                axes.plot(row["searches"], row["seconds"], "x", color=_PAPER, markersize=8)
    _lines(axes, series, _Axis("searches at once"), "makespan, s")
    axes.set_title(
        "Paper (figures 12, 13): without Gdev more than one fail; with it all finish",
        fontsize=style.SMALL_TEXT,
        loc="left",
    )
    return figure


_FIGURES: Final = {
    "micro": _micro_figure,
    "copies": _copies_figure,
    "dataflow": _dataflow_figure,
    "search": _search_figure,
}


# --- Panels ---


@dataclass(frozen=True)
class _Line:
    points: Points
    color: str
    is_dashed: bool = False


def _panels(rows: int, columns: int) -> Any:  # noqa: ANN401
    """Returns a figure and its panels, with room for names on the right of each."""
    figure = style.new_figure(columns * (_WIDTH + 1.6), rows * (_HEIGHT + 0.6))
    panels = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(wspace=0.6, hspace=0.45, top=1 - 0.5 / figure.get_figheight())
    return figure, panels


def _lines(axes: Any, series: dict[str, _Line], axis: _Axis, unit: str) -> None:  # noqa: ANN401
    """Draws lines over values that grow by factors, with their names on the right."""
    from matplotlib.ticker import LogLocator, NullLocator

    style.plain_axes(axes)
    shown = {name: line for name, line in series.items() if line.points}
    for line in shown.values():
        axes.plot(
            *zip(*line.points, strict=True),
            color=line.color,
            marker="." if len(line.points) > 1 else "D",
            linewidth=1.2,
            linestyle="--" if line.is_dashed else "-",
        )
    ticks = sorted({int(x) for line in shown.values() for x, _ in line.points})
    ticks = ticks[:: math.ceil(len(ticks) / _TICKS_MAX)]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [axis.text(x) for x in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(axis.label, fontsize=style.SMALL_TEXT)
    axes.set_ylabel(unit, fontsize=style.SMALL_TEXT)
    style.name_lines(axes, _ends(shown))


def _ends(series: dict[str, _Line]) -> Iterable[tuple[str, float, float, str]]:
    return [(name, *line.points[-1], line.color) for name, line in series.items()]


def _mark(axes: Any, x: float, text: str) -> None:  # noqa: ANN401
    """Draws where the paper found something."""
    axes.axvline(x, color=_PAPER, linewidth=0.8, linestyle=":")
    axes.text(x, 0.02, f" {text}", transform=axes.get_xaxis_transform(), color=_PAPER, fontsize=6)
