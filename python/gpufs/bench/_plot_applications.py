"""The plot of all applications: a small panel for each, and how much faster programs are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpufs._plot_style import (
    LIMIT,
    SMALL_TEXT,
    TEXT,
    color_of,
    new_figure,
    plain_axes,
    short_name,
    spread_out,
)
from gpufs.bench._measure import Measurement, Value, ratio
from gpufs.bench._results import Line, Results, Table
from gpufs.sizes import format_size

ROW_INCHES: Final = 0.23
HEAD_INCHES: Final = 0.45  # of a panel: its title
WIDTH_INCHES: Final = 10.5
LEFT: Final = (0.17, 0.71)  # of the panels of two columns, as a part of the figure
PANEL_WIDTH: Final = 0.27
SMALLEST: Final = 0.1  # of the axis
LARGEST: Final = 1000
LETTER_WIDTH: Final = 0.0185  # of a name, as a part of a panel's width
TOP_INCHES: Final = 0.35  # for the title of the figure

TITLES: Final = {
    "grep": "grep: words in source text",
    "matvec": "matvec: matrix file times vector file",
    "matmul": "matmul: matrix file times matrix file",
    "search": "search: near vectors in databases",
    "collage": "collage: a picture made of tiles",
}
RUNS: Final = ("first", "again")  # of a line; another run makes another row
# In names of programs whose data is in the GPU's memory.
AGAIN: Final = " again"
IN_MEMORY: Final = " in memory"


@dataclass
class Row:
    """A row of a panel: what was computed, and how much faster programs did it."""

    label: str
    speedups: dict[str, float] = field(default_factory=dict)  # by program


def draw_applications(results: Results, tables: Iterable[Table]) -> Any | None:  # noqa: ANN401
    """Draws the applications. Returns the figure; None if there is nothing to compare."""
    panels = {table.name: rows for table in tables if (rows := rows_of(table))}
    if not panels:
        return None
    columns = _balanced(panels)
    inches = max(sum(_height(panels[name]) for name in column) for column in columns)
    scale = len(LEFT) / len(columns)
    figure = new_figure(WIDTH_INCHES / scale, inches + TOP_INCHES)
    for position, column in enumerate(columns):
        top = inches
        for name in column:
            height = len(panels[name]) * ROW_INCHES
            axes = figure.add_axes(
                (
                    LEFT[position] * scale,
                    (top - HEAD_INCHES - height + 0.1) / (inches + TOP_INCHES),
                    PANEL_WIDTH * scale,
                    height / (inches + TOP_INCHES),
                )
            )
            _draw_panel(axes, TITLES.get(name, name), panels[name])
            top -= _height(panels[name])
    figure.suptitle(
        "How many times as fast as the program for the CPU\n"
        f"{results.device_name}; hollow: the data is in the GPU's memory",
        fontsize=TEXT,
        x=0.01,
        ha="left",
        y=1,
        va="top",
    )
    return figure


def rows_of(table: Table) -> list[Row]:
    """Returns the rows of an application: speedups over the program for the CPU.

    A line without such a program uses that of the first line with the same sizes: whether the data
    is in the GPU's memory makes no difference to it.
    """
    rows: dict[str, Row] = {}
    known: dict[tuple[object, ...], Measurement] = {}
    for line in table.lines:
        if line.ours is None or line.ours.value is None:
            continue
        base = _base(line) or known.get(_sizes(line))
        if base is None:
            continue
        known.setdefault(_sizes(line), base)
        is_again = str(line.parameters.get("run", line.parameters.get("found"))).endswith("again")
        row = rows.setdefault(_label(line), Row(_label(line)))
        for one in (line.ours, *_programs(line)):
            if one is base or one.value is None:
                continue
            # Of several programs of a kind the first, which ours is compared with.
            name = short_name(one.name)
            if one.name.endswith("memory"):
                name += IN_MEMORY
            elif is_again:
                name += AGAIN
            row.speedups.setdefault(name, ratio(one, base) or 0)
    return list(rows.values())


def _programs(line: Line) -> list[Measurement]:
    """Returns the programs without gpufs."""
    return [
        one
        for one in (line.limit, *line.peers)
        if one is not None and not one.name.startswith(("copy engine", "memcpy", "gpufs"))
    ]


def _base(line: Line) -> Measurement | None:
    """Returns the program for the CPU, or else the CPU device."""
    for kind in ("CPU,", "CPU device"):
        for one in _programs(line):
            if one.name.startswith(kind) and one.value is not None:
                return one
    return None


def _sizes(line: Line) -> tuple[object, ...]:
    unit = line.ours.unit if line.ours else None
    others = ((n, v) for n, v in line.parameters.items() if n not in ("run", "found", "page"))
    return (unit, *others)


def _label(line: Line) -> str:
    """Returns the parameters in words, without whether the data is in the GPU's memory."""
    given = dict(line.parameters)
    words = [_in_words(name, value, given) for name, value in given.items()]
    return ", ".join(word for word in words if word)


def _in_words(name: str, value: Value, given: dict[str, Value]) -> str:
    if name in ("where", "dimensions") or (name == "run" and value in RUNS):
        return ""
    if name in ("rows", "depth") and "columns" in given:
        return ""
    if name == "columns" and "rows" in given:
        return " x ".join(f"{given[one]:,}" for one in ("rows", "depth", "columns") if one in given)
    if name == "page" and isinstance(value, int):
        return f"pages of {format_size(value)}"
    if name == "vectors":
        return f"{value:,} vectors"
    return f"{value:,} {name}" if isinstance(value, int) else str(value).removesuffix(", again")


def _height(rows: Sequence[Row]) -> float:
    return len(rows) * ROW_INCHES + HEAD_INCHES


def _balanced(panels: dict[str, list[Row]]) -> list[list[str]]:
    """Returns the panels of two columns, in order, of heights that differ little."""
    names = list(panels)
    if len(names) < 2:
        return [names]

    def taller(split: int) -> float:
        return max(
            sum(_height(panels[name]) for name in part) for part in (names[:split], names[split:])
        )

    split = min(range(1, len(names)), key=taller)
    return [names[:split], names[split:]]


def _draw_panel(axes: Any, title: str, rows: Sequence[Row]) -> None:  # noqa: ANN401
    plain_axes(axes)
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST, LARGEST)
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_xticks([0.1, 1, 10, 100, 1000], ["0.1x", "CPU", "10x", "100x", "1,000x"])
    axes.minorticks_off()
    axes.axvline(1, color=LIMIT, linewidth=1)
    axes.set_title(title, fontsize=TEXT, loc="left", x=-0.6, fontweight="bold")
    for y, row in enumerate(rows):
        for program, speedup in row.speedups.items():
            color = color_of(program)
            axes.plot(
                [speedup],
                [y],
                marker="o",
                markersize=6 if program.startswith("gpufs") else 4.5,
                color=color,
                markerfacecolor="white" if program.endswith((AGAIN, IN_MEMORY)) else color,
                linestyle="none",
                zorder=4 if program.startswith("gpufs") else 3,
            )
    for y, names in _first_seen(rows):
        _name_points(axes, y, names)


def _first_seen(rows: Sequence[Row]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields each row that has programs that no earlier one has, and these."""
    seen: set[str] = set()
    for y, row in enumerate(rows):
        new = {name: x for name, x in row.speedups.items() if name not in seen}
        seen |= set(new)
        if new:
            yield y, new


def _name_points(axes: Any, y: int, names: dict[str, float]) -> None:  # noqa: ANN401
    """Writes the names of points above them."""
    span = math.log(LARGEST / SMALLEST)
    wanted = [math.log(x / SMALLEST) / span for x in names.values()]
    places = spread_out(wanted, [(len(name) + 1) * LETTER_WIDTH for name in names])
    for name, place in zip(names, places, strict=True):
        axes.text(
            place,
            y - 0.3,
            name,
            transform=axes.get_yaxis_transform(),
            fontsize=SMALL_TEXT - 1,
            ha="center",
            va="bottom",
            color=color_of(name),
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},
        )
