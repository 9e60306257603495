"""Values as text, and the comparison of two results."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from gpufs.bench._measure import LESS_IS_BETTER, Measurement, Value
from gpufs.bench._results import Line, Results, Table
from gpufs.sizes import format_size

WIDTH: Final = 120  # columns of a table in a file
SIZES: Final = ("page", "chunk", "record")  # parameters in bytes


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


def _unmarked(cells: Iterable[str | Text]) -> Iterable[Text]:
    """Returns texts that rich does not parse as markup: names may contain brackets."""
    return (Text(cell) if isinstance(cell, str) else cell for cell in cells)


def _show(table: RichTable, colored: bool, width: int | None) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=colored, no_color=not colored, width=width or WIDTH)
    console.print(table)
    return out.getvalue()


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
