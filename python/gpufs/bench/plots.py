"""Plots of results as PNG and PDF: one figure a benchmark, and one of all applications.

They need matplotlib (the extra ``gpufs[bench]``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from gpufs.bench._applications import APPLICATIONS
from gpufs.bench._measure import Measurement, Value, ratio
from gpufs.bench._report import SIZES, parameter
from gpufs.bench._results import Line, Results, Table

SIZE_INCHES: Final = (6.0, 4.0)
PIXELS_PER_INCH: Final = 200


def check() -> None:
    """Raises ImportError, with advice, if plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'gpufs[bench]'") from None


def draw(results: Results, folder: str | Path) -> list[Path]:
    """Draws each benchmark with at least two values along its axis. Returns the written files.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the folder cannot be written.
    """
    check()
    Path(folder).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for table in results.benchmarks:
        lines = [
            line
            for line in table.lines
            if line.ours is not None
            and line.ours.value is not None
            and table.axis in line.parameters
        ]
        # Only numbers have a place on an axis.
        if len({x for line in lines if isinstance(x := line.parameters.get(table.axis), int)}) < 2:
            continue
        written += _save(_draw(results, table, lines), folder, table.name)
    for group, names in {"apps": APPLICATIONS}.items():
        rows = [
            row for table in results.benchmarks if table.name in names for row in _programs(table)
        ]
        if rows:
            written += _save(_draw_programs(results, rows), folder, group)
    return written


def _save(figure: Any, folder: str | Path, name: str) -> Iterator[Path]:  # noqa: ANN401
    for suffix in ("png", "pdf"):
        path = Path(folder, f"{name}.{suffix}")
        figure.savefig(path, dpi=PIXELS_PER_INCH, bbox_inches="tight")
        yield path


def _programs(table: Table) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields the name of each line, and the speedups of its programs over the CPU program.

    A line without a CPU program uses that of the first line with the same sizes.
    """
    known: dict[tuple[object, ...], Measurement] = {}
    for line in table.lines:
        others = [line.limit, *line.peers]
        programs = [
            one
            for one in others
            if one is not None and not one.name.startswith(("copy engine", "gpufs"))
        ]
        bases = [
            one for kind in ("CPU,", "CPU device") for one in programs if one.name.startswith(kind)
        ]
        unit = line.ours.unit if line.ours else None
        sizes = (
            unit,
            *(
                (name, v)
                for name, v in line.parameters.items()
                if name not in ("run", "found", "page")
            ),
        )
        base = next((one for one in bases if one.value is not None), known.get(sizes))
        if base is None or line.ours is None or line.ours.value is None:
            continue
        known.setdefault(sizes, base)
        words = [
            parameter(name, v) if isinstance(v, int) else str(v)
            for name, v in line.parameters.items()
        ]
        measured = [
            one for one in (line.ours, *programs) if one is not base and one.value is not None
        ]
        values: dict[str, float] = {}
        for one in measured:  # of several programs of a kind the first, which ours is compared with
            values.setdefault(one.name.split(",")[0], ratio(one, base) or 0.0)
        yield f"{table.name}: {', '.join(words)}", values


def _draw_programs(
    results: Results,
    rows: Sequence[tuple[str, dict[str, float]]],
) -> Any:  # noqa: ANN401 - matplotlib has no types here
    """Draws bars: the speedups of each line's programs over the CPU program."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(kind for _, values in rows for kind in values))
    height = 0.8 / len(kinds)
    figure = Figure(figsize=(SIZE_INCHES[0] * 1.4, 1 + 0.09 * len(rows) * len(kinds)))
    axes = figure.add_subplot()
    for k, kind in enumerate(kinds):
        at = [
            (i + k * height, values[kind]) for i, (_, values) in enumerate(rows) if values.get(kind)
        ]
        axes.barh([y for y, _ in at], [x for _, x in at], height, label=kind)
    axes.set_yticks(
        [i + 0.4 - height / 2 for i in range(len(rows))], [name for name, _ in rows], fontsize=7
    )
    axes.set_ylim(len(rows), -0.4)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast as the program for the CPU")
    axes.set_title(
        f"Applications, and programs that do without gpufs\n{results.device_name}", fontsize=9
    )
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1))
    return figure


def _draw(results: Results, table: Table, lines: Sequence[Line]) -> Any:  # noqa: ANN401
    # Without pyplot, which would look for a display and keep every figure.
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=SIZE_INCHES)
    axes = figure.add_subplot()
    series = _series(table, lines)
    for style, points in series.values():
        points.sort()
        axes.plot([x for x, _ in points], [y for _, y in points], **style)
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


def _kinds(table: Table, lines: Sequence[Line]) -> list[str]:
    """Returns the name of each line's series: its parameters except for the axis.

    Numbers in a name (threads) change along the axis and do not make another series. A parameter
    that equals the axis's value in all lines of its kind does not, either: for example, the page
    size of reads page by page.
    """

    def others(line: Line) -> dict[str, Value]:
        return {
            name: v for name, v in line.parameters.items() if name != table.axis and v != "gpufs"
        }

    def words(line: Line) -> tuple[Value, ...]:
        return tuple(v for v in others(line).values() if not isinstance(v, int))

    apart = {
        (words(line), name)
        for line in lines
        for name, v in others(line).items()
        if v != line.parameters[table.axis]
    }
    kinds = []
    for line in lines:
        parts = [
            str(v) if not isinstance(v, int) else f"{name} {parameter(name, v)}"
            for name, v in others(line).items()
            if (words(line), name) in apart
        ]
        kinds.append(", ".join(parts))
    return kinds


def _series(table: Table, lines: Sequence[Line]) -> dict[str, tuple[dict[str, Any], _Points]]:
    """Returns the curves by name: ours thick, limits as dashed lines, peers thin.

    If there are several kinds, each has a colour, and a limit is named once.
    """
    series: dict[str, tuple[dict[str, Any], _Points]] = {}
    kinds = _kinds(table, lines)
    distinct = list(dict.fromkeys(kinds))
    named: set[str] = set()

    def add(
        measurement: Measurement | None, x: Value, name: str, kind: str, style: dict[str, Any]
    ) -> None:
        if measurement is None or measurement.value is None or not isinstance(x, int):
            return
        label = f"{name} ({kind})" if kind else name
        if label not in series:
            style = {**style, "label": label}
            if len(distinct) > 1:
                style["color"] = f"C{distinct.index(kind) % 10}"
                if style.get("linestyle") == "--":
                    style["label"] = "_nolegend_" if name in named else name
                    named.add(name)
            series[label] = (style, [])
        series[label][1].append((x, measurement.value))

    for line, kind in zip(lines, kinds, strict=True):
        x = line.parameters[table.axis]
        add(line.ours, x, "gpufs", kind, {"marker": "o", "linewidth": 2})
        if line.limit is not None:
            name = f"limit: {line.limit.name.split(',')[0]}"
            add(line.limit, x, name, kind, {"linestyle": "--", "marker": "_", "linewidth": 1.2})
        for peer in line.peers:
            add(peer, x, peer.name.split(",")[0], kind, {"marker": ".", "linewidth": 0.8})
    return series
