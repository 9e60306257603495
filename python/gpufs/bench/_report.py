"""Tables of results as text."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from gpufs.bench._measure import LESS_IS_BETTER, Measurement, Value
from gpufs.bench._results import Line, Results, Table
from gpufs.sizes import format_size

PLAIN_WIDTH = 180  # columns of a table in a file
SIZES = ("page", "chunk", "record")  # parameters in bytes
CPU_GB = 1e9


def number(value: float) -> str:
    """Returns a number with about three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    digits = 2 if value >= 1 else 3
    return f"{value:.{1 if value >= 100 else digits}f}"


def parameter(name: str, value: Value) -> str:
    return format_size(value) if name in SIZES and isinstance(value, int) else str(value)


def amount(measurement: Measurement | None, *, named: bool = False) -> str:
    if measurement is None:
        return ""
    name = f"{measurement.name} " if named else ""
    if measurement.value is None:
        return f"{name}-"
    return f"{name}{number(measurement.value)} {measurement.unit}"


def _rate(measurement: Measurement | None) -> str:
    if measurement is None or measurement.value is None or not measurement.operations:
        return ""
    return number(measurement.operations / measurement.median_s / 1e6)


def _cpu(measurement: Measurement | None) -> tuple[str, str]:
    if measurement is None or measurement.value is None:
        return "", ""
    per_gb = (
        sum(measurement.cpu_seconds) / len(measurement.cpu_seconds) / measurement.bytes * CPU_GB
    )
    return f"{measurement.cores:.2f}", number(per_gb)


def _ratio(line: Line) -> Text:
    if line.ratio is None:
        return Text("")
    reached = line.target is None or line.ratio >= line.target
    return Text(f"{line.ratio:.2f}", style="green" if reached else "yellow")


def _wrong(line: Line) -> Text:
    wrong = sum(m.wrong_bytes for m in line.measurements)
    return Text(f"{wrong:,} B wrong" if wrong else "ok", style="bold red" if wrong else "")


def _unmarked(cells: Iterable[str | Text]) -> Iterable[Text]:
    """Returns texts that rich does not parse as markup: names may contain brackets."""
    return (Text(cell) if isinstance(cell, str) else cell for cell in cells)


def _show(table: RichTable, colored: bool, width: int | None) -> str:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=colored, no_color=not colored, width=width or PLAIN_WIDTH
    )
    console.print(table)
    return out.getvalue()


def show(table: Table, *, colored: bool = False, width: int | None = None) -> str:
    """Returns the table of a benchmark as text."""
    shown = RichTable(
        title=f"{table.name}: {table.title}", title_justify="left", box=box.SIMPLE_HEAD
    )
    names = list(
        dict.fromkeys(itertools.chain.from_iterable(line.parameters for line in table.lines))
    )
    for name in names:
        shown.add_column(name, justify="right")
    has_ours = any(line.ours for line in table.lines)
    if has_ours:
        for title in ("gpufs", "M ops/s"):
            shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("limit", no_wrap=True)
    if has_ours:
        for title in ("ratio", "wanted", "cores", "CPU s/GB"):
            shown.add_column(title, justify="right", no_wrap=True)
        shown.add_column("beside it")
    shown.add_column("data", no_wrap=True)
    for line in table.lines:
        cells: list[str | Text] = [parameter(name, line.parameters.get(name, "")) for name in names]
        if has_ours:
            measured = line.ours is not None and line.ours.bytes != 0
            cpu = _cpu(line.ours) if measured else ("", "")
            wanted = "" if line.target is None else f"{line.target:.2f}"
            cells += [
                amount(line.ours),
                _rate(line.ours),
                amount(line.limit, named=True),
                _ratio(line),
                wanted,
                *cpu,
            ]
            cells.append(
                ", ".join(amount(peer, named=True) for peer in line.peers if peer.value is not None)
            )
        else:
            cells.append(amount(line.limit, named=True))
        cells.append(_wrong(line))
        shown.add_row(*_unmarked(cells))
    return _show(shown, colored, width) + "".join(f"  {text}\n" for text in absences(table))


def absences(table: Table) -> Iterable[str]:
    """Yields the reasons for absent measurements, each once."""
    seen = {
        f"{m.name}: not measured: {m.absent}": None
        for line in table.lines
        for m in line.measurements
        if m.value is None
    }
    return iter(seen)


def compare(
    before: Results, after: Results, *, colored: bool = False, width: int | None = None
) -> str:
    """Returns the differences between our values of two runs of the program.

    A change counts if it is larger than the range of both sides' runs.
    """
    shown = RichTable(box=box.SIMPLE_HEAD)
    for title in ("benchmark", "parameters"):
        shown.add_column(title)
    for title in ("before", "after", "change", "limit's change"):
        shown.add_column(title, justify="right", no_wrap=True)
    old = {_key(table, line): line for table in before.benchmarks for line in table.lines}
    for table in after.benchmarks:
        for line in table.lines:
            earlier = old.get(_key(table, line))
            if earlier is None:
                continue
            parameters = ", ".join(
                f"{name} {parameter(name, value)}" for name, value in line.parameters.items()
            )
            ours = (earlier.ours, line.ours) if line.ours else (earlier.limit, line.limit)
            limits = _change(earlier.limit, line.limit) if line.ours else ""
            cells = (
                table.name,
                parameters,
                amount(ours[0]),
                amount(ours[1]),
                _change(*ours),
                limits,
            )
            shown.add_row(*_unmarked(cells))
    notes = [
        f"before: gpufs {before.version} ({before.commit}) on {before.device_name}, {before.date}",
        f"after:  gpufs {after.version} ({after.commit}) on {after.device_name}, {after.date}",
    ]
    if before.device_name != after.device_name or before.machine.get("host") != after.machine.get(
        "host"
    ):
        notes.append("These are different machines, or the same one after a change.")
    if (before.file_bytes, before.quick) != (after.file_bytes, after.quick):
        notes.append("The sizes differ: compare ratios, not values.")
    if not shown.rows:
        notes.append("They have no benchmark in common.")
        return "".join(f"{note}\n" for note in notes)
    return "".join(f"{note}\n" for note in notes) + _show(shown, colored, width)


def _key(table: Table, line: Line) -> tuple[object, ...]:
    return (table.name, *sorted(line.parameters.items()))


def _change(before: Measurement | None, after: Measurement | None) -> Text:
    if before is None or after is None or not before.value or not after.value:
        return Text("")
    change = after.value / before.value - 1
    if abs(change) <= max(before.spread, after.spread):
        return Text(f"{change:+.1%} (noise)")
    better = change < 0 if after.unit in LESS_IS_BETTER else change > 0
    return Text(f"{change:+.1%}", style="green" if better else "red")
