"""The plot of a benchmark along its axis: a small panel for each way to do the task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpufs._plot_style import (
    LIMIT,
    OURS,
    SMALL_TEXT,
    TEXT,
    color_of,
    name_lines,
    new_figure,
    plain_axes,
    short_name,
)
from gpufs.bench._measure import Measurement, Value
from gpufs.bench._report import parameter
from gpufs.bench._results import Line, Results, Table

PANEL_INCHES: Final = (2.3, 1.9)
NAMES_INCHES: Final = 1.5  # for the names to the right of a panel
GAP_INCHES: Final = 0.75  # between panels, for the axis and the title
HEAD_INCHES: Final = 0.4  # for the title of the figure
COLUMNS_MAX: Final = 2
SMALLEST_RANGE: Final = 4.0  # the largest value of an axis, divided by the smallest

ALONE: Final = {"marker": ".", "zorder": 4}  # the style of a single point: no line hides it

# Names of parameters and units, for readers who do not know the program.
AXES: Final = {
    "page": "page size",
    "chunk": "bytes of a call",
    "record": "record size",
    "workers": "host workers",
    "threads": "host threads",
    "blocks": "blocks of 256 threads",
    "file / cache": "size of the file / size of the cache",
    "pages": "pages that all blocks read",
    "words": "words to look for",
    "columns": "columns of the matrix",
    "rows": "rows of the matrix",
    "queries": "queries",
}
PLURALS: Final = {"page": "pages of", "chunk": "calls of", "record": "records of"}
UNITS: Final = {
    "M/s": "million a second",
    "k/s": "thousand a second",
    "us": "microseconds",
    "ms/GB": "milliseconds a GB",
}
WORDS: Final = {
    "map": "gmmap",
    "map_each": "gmmap_each, 32 pages a call",
    "read_by_warp": "gread by warps",
    "read_by_block": "gread by blocks",
    "view": "view<T>, one at a time",
    "view_several": "view<T>, four at a time",
    "gather": "records gathered by warps",
    "hot": "file in the page cache",
    "dropped": "file on disk",
    "gpufs, advised": "blocks prefetch",
    "random": "random order",
    "forward": "front to back",
    "first": "first read",
    "again": "again, from the GPU's cache",
}


@dataclass
class Series:
    """The points of a program in a panel."""

    color: str
    style: dict[str, Any]
    points: list[tuple[int, float]] = field(default_factory=list)


Panels = dict[str, dict[str, Series]]
"""By title, and by the name of the line."""


def draw_lines(results: Results, table: Table) -> Any | None:  # noqa: ANN401
    """Draws a benchmark. Returns the figure; None if no line has two points."""
    panels = panels_of(table)
    if not panels:
        return None
    columns = min(COLUMNS_MAX, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = PANEL_INCHES
    figure = new_figure(
        columns * (width + NAMES_INCHES), rows * (height + GAP_INCHES) + HEAD_INCHES
    )
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    figure.subplots_adjust(
        left=0.5 / figure.get_figwidth(),
        right=1 - NAMES_INCHES / figure.get_figwidth(),
        wspace=(NAMES_INCHES + 0.1) / width,
        hspace=GAP_INCHES / height,
        top=1 - (HEAD_INCHES + 0.2) / figure.get_figheight(),
        bottom=(GAP_INCHES - 0.2) / figure.get_figheight(),
    )
    all_axes = [axes for row in grid for axes in row]
    units = [line.ours.unit for line in table.lines if line.ours is not None]
    _show_enough(all_axes[0], panels)
    for position, (axes, (title, series)) in enumerate(zip(all_axes, panels.items(), strict=False)):
        _draw_panel(axes, table.axis, series)
        axes.set_title(title, fontsize=TEXT, loc="left")
        axes.set_xlabel(AXES.get(table.axis, table.axis), fontsize=SMALL_TEXT)
        if position % columns == 0:
            axes.set_ylabel(UNITS.get(units[0], units[0]), fontsize=SMALL_TEXT)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    for axes, series in zip(all_axes, panels.values(), strict=False):
        _name_all(
            axes, table.axis, series
        )  # after all points, which decide the range of the common axis
    figure.suptitle(
        f"{table.title}\n{results.device_name}", fontsize=TEXT, x=0.01, ha="left", y=1, va="top"
    )
    return figure


def panels_of(table: Table) -> Panels:
    """Returns the panels of a benchmark: those with at least two points along the axis.

    Words among the parameters make a panel, but variants of gpufs share one. Numbers make a line,
    but for those that change along the axis.
    """
    lines = [
        line
        for line in table.lines
        if line.ours is not None
        and line.ours.value is not None
        and isinstance(line.parameters.get(table.axis), int)
    ]
    panels: Panels = {}
    for line, kind in zip(lines, _kinds(table.axis, lines), strict=True):
        _add_line(panels.setdefault(_title(table.axis, line), {}), table.axis, line, kind)
    return {
        title: series
        for title, series in panels.items()
        if any(len({x for x, _ in one.points}) > 1 for one in series.values())
    }


def _title(axis: str, line: Line) -> str:
    words = [
        WORDS.get(value, value)
        for name, value in line.parameters.items()
        if name not in (axis, "variant") and isinstance(value, str)
    ]
    return ", ".join(words)


def _kinds(axis: str, lines: Sequence[Line]) -> list[str]:
    """Returns what distinguishes the line of ours from others of its panel.

    A number that equals the axis's value in all lines of a panel does not: for example, the page
    size of reads page by page. The number of threads does not, either, nor one that is always the
    same.
    """

    def numbers(line: Line) -> dict[str, Value]:
        return {
            name: value
            for name, value in line.parameters.items()
            if name not in (axis, "workers", "threads") and isinstance(value, int)
        }

    values: dict[tuple[str, str], set[Value]] = {}
    apart = set()
    for line in lines:
        for name, value in numbers(line).items():
            values.setdefault((_title(axis, line), name), set()).add(value)
            if value != line.parameters[axis]:
                apart.add((_title(axis, line), name))
    kinds = []
    for line in lines:
        parts = [
            f"{PLURALS.get(name, name)} {parameter(name, value)}"
            for name, value in numbers(line).items()
            if (_title(axis, line), name) in apart and len(values[_title(axis, line), name]) > 1
        ]
        variant = line.parameters.get("variant", "gpufs")
        if variant != "gpufs":
            parts.append(WORDS.get(str(variant), str(variant)))
        kinds.append(", ".join(parts))
    return kinds


def _add_line(panel: dict[str, Series], axis: str, line: Line, kind: str) -> None:
    x = line.parameters[axis]
    assert isinstance(x, int)

    def add(measurement: Measurement | None, name: str, color: str, style: dict[str, Any]) -> None:
        if measurement is None or measurement.value is None:
            return
        point = (x, measurement.value)
        points = panel.setdefault(name, Series(color, style)).points
        if point not in points:
            points.append(point)

    markers = ("o", "s", "^", "D")
    ours = [name for name in panel if name.startswith("gpufs")]
    name = f"gpufs, {kind}" if kind else "gpufs"
    marker = markers[(ours.index(name) if name in ours else len(ours)) % len(markers)]
    add(line.ours, name, OURS, {"marker": marker, "markersize": 4, "linewidth": 1.8, "zorder": 3})
    if line.limit is not None:
        name = line.limit.name
        limit = name if name.startswith("gpufs") else short_name(name)
        add(line.limit, f"limit: {limit}", LIMIT, {"linestyle": "--", "linewidth": 1})
    for peer in line.peers:
        peer_name = short_name(peer.name)
        add(peer, peer_name, color_of(peer_name), {"marker": ".", "linewidth": 1})


def _draw_panel(axes: Any, axis: str, series: dict[str, Series]) -> None:  # noqa: ANN401
    from matplotlib.ticker import LogLocator, NullLocator

    plain_axes(axes)
    for one in series.values():
        one.points.sort()
        style = one.style if len(one.points) > 1 else one.style | ALONE
        axes.plot([x for x, _ in one.points], [y for _, y in one.points], color=one.color, **style)
    ticks = sorted({x for one in series.values() for x, _ in one.points})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [_tick(axis, x) for x in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,g}")


def _show_enough(axes: Any, panels: Panels) -> None:  # noqa: ANN401
    """Makes the common range of values so large that small differences look small."""
    values = [
        y for series in panels.values() for one in series.values() for _, y in one.points if y > 0
    ]
    low, high = min(values), max(values)
    if high < low * SMALLEST_RANGE:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / math.sqrt(SMALLEST_RANGE), middle * math.sqrt(SMALLEST_RANGE))


def _tick(axis: str, x: int) -> str:
    text = parameter(axis, x)
    return text.replace(" ", "\n") if text != str(x) else f"{x:,}"


def _name_all(axes: Any, axis: str, series: dict[str, Series]) -> None:  # noqa: ANN401
    """Writes the names of all lines, and of programs with a single point, to the right."""
    name_lines(
        axes,
        [
            (
                name if len(one.points) > 1 else f"{name} (at {parameter(axis, one.points[0][0])})",
                *one.points[-1],
                one.color,
            )
            for name, one in series.items()
        ],
    )
