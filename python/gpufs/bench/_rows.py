"""The table of a benchmark as text, row by row.

The planned cases decide the widths of the columns, so a row can be shown when it is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rich.color import ColorSystem
from rich.style import Style

from gpufs.bench._measure import Case, Measurement
from gpufs.bench._report import WIDTH, amount, number, parameter
from gpufs.bench._results import Line, Table

CPU_GB: Final = 1e9
VALUE_WIDTH: Final = 6  # columns of a number, such as 25,241
GAP: Final = "  "
INDENT: Final = "    "  # of the lines that belong to the row above

# Columns that a narrow terminal lacks, the least important one first.
DISPENSABLE: Final = ("M ops/s", "CPU s/GB", "cores", "wanted")

Styled: TypeAlias = tuple[str, str]
"""A text, and its style on a terminal."""


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    cell: Callable[[Line], Styled]
    right: bool = True

    def align(self, text: str) -> str:
        return text.rjust(self.width) if self.right else text.ljust(self.width)


class Rows:
    """Makes the text of a table: its head, a row for each line, its foot."""

    def __init__(
        self,
        table: Table,
        planned: Iterable[Case | Line],
        *,
        colored: bool = False,
        width: int | None = None,
    ) -> None:
        """Lays out the table of ``planned`` lines.

        Args:
            table: the table; its lines are not read.
            planned: all lines, measured or not.
            colored: whether to use colors.
            width: columns of the terminal; None: those of a file.
        """
        self._title = f"{table.name}: {table.title}"
        self._colored = colored
        self._width = width or WIDTH
        self._columns = _fitting(_columns(list(planned)), self._width)
        self._shown: set[tuple[str, str, float | None]] = set()

    def head(self) -> str:
        titles = GAP.join(column.align(column.title) for column in self._columns).rstrip()
        rule = GAP.join("-" * column.width for column in self._columns)
        return f"{self._style(self._title, 'italic')}\n\n{self._style(titles, 'bold')}\n{rule}\n"

    def row(self, line: Line) -> str:
        """Returns the row of a line, and below it the peers that no earlier row has shown."""
        cells = [
            self._style(column.align(text), style)
            for column in self._columns
            for text, style in [column.cell(line)]
        ]
        return "".join(f"{text}\n" for text in (GAP.join(cells).rstrip(), *self._beside(line)))

    def foot(self, lines: Sequence[Line]) -> str:
        """Returns the reasons for absent measurements, each once."""
        return "".join(f"{GAP}{text}\n" for text in absences(lines))

    def _beside(self, line: Line) -> Iterator[str]:
        new = []
        for peer in line.peers:
            key = (peer.name, peer.unit, peer.value)
            if peer.value is not None and key not in self._shown:
                self._shown.add(key)
                new.append(amount(peer, named=True))
        begin = f"{INDENT}beside it: "
        text = begin
        for position, part in enumerate(new):
            if text.strip() and text != begin and len(text) + len(part) + 1 > self._width:
                yield text.rstrip()
                text = " " * len(begin)
            text += part + ("; " if position + 1 < len(new) else "")
        if new:
            yield text

    def _style(self, text: str, style: str) -> str:
        if not self._colored or not style:
            return text
        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def show(table: Table, *, colored: bool = False, width: int | None = None) -> str:
    """Returns a measured table as text."""
    rows = Rows(table, table.lines, colored=colored, width=width)
    return rows.head() + "".join(map(rows.row, table.lines)) + rows.foot(table.lines)


def absences(lines: Iterable[Line]) -> list[str]:
    """Returns the reasons for absent measurements, each once."""
    return list(
        dict.fromkeys(
            f"{m.name}: not measured: {m.absent}"
            for line in lines
            for m in line.measurements
            if m.value is None
        )
    )


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """Leaves out columns until the others fit into the width, if that is possible."""
    for title in DISPENSABLE:
        if sum(column.width + len(GAP) for column in columns) - len(GAP) <= width:
            break
        columns = [column for column in columns if column.title != title]
    return columns


def _columns(planned: Sequence[Case | Line]) -> list[_Column]:
    names = dict.fromkeys(name for line in planned for name in line.parameters)
    columns = [
        _Column(
            name,
            max(
                len(name),
                *(len(_parameter(name, line)[0]) for line in planned),
            ),
            functools.partial(_parameter, name),
        )
        for name in names
    ]
    units = [len(line.ours.unit) for line in planned if line.ours is not None]
    limits = [len(line.limit.name) for line in planned if line.limit is not None]
    limit_width = VALUE_WIDTH + 1 + max(limits, default=0)
    if not units:
        longest = max((len(line.limit.unit) for line in planned if line.limit), default=0)
        return [
            *columns,
            _Column("limit", limit_width + longest + 1, _limit_in_unit, right=False),
            _Column("data", len("ok"), _data, right=False),
        ]
    columns += [
        _Column("gpufs", VALUE_WIDTH + 1 + max(units), lambda line: (amount(line.ours), "")),
        _Column("M ops/s", len("M ops/s"), lambda line: (_rate(line.ours), "")),
    ]
    if limits:
        columns += [
            _Column("limit", limit_width, _limit, right=False),
            _Column("ratio", len("ratio"), _ratio),
            _Column("wanted", len("wanted"), _wanted),
        ]
    return [
        *columns,
        _Column("cores", len("cores"), _cores),
        _Column("CPU s/GB", len("CPU s/GB"), _cpu_s_per_gb),
        _Column("data", len("data"), _data, right=False),
    ]


def _parameter(name: str, line: Case | Line) -> Styled:
    return parameter(name, line.parameters.get(name, "")), ""


def _rate(measurement: Measurement | None) -> str:
    if measurement is None or measurement.value is None or not measurement.operations:
        return ""
    return number(measurement.operations / measurement.median_s / 1e6)


def _limit(line: Line) -> Styled:
    """Returns the limit, in the unit of ours."""
    if line.limit is None:
        return "", ""
    value = "-" if line.limit.value is None else number(line.limit.value)
    return f"{value:>{VALUE_WIDTH}} {line.limit.name}", ""


def _limit_in_unit(line: Line) -> Styled:
    if line.limit is None:
        return "", ""
    value = "-" if line.limit.value is None else number(line.limit.value)
    return f"{value:>{VALUE_WIDTH}} {line.limit.unit} {line.limit.name}", ""


def _ratio(line: Line) -> Styled:
    if line.ratio is None:
        return "", ""
    reached = line.target is None or line.ratio >= line.target
    return f"{line.ratio:.2f}", "green" if reached else "yellow"


def _wanted(line: Line) -> Styled:
    return "" if line.target is None else f"{line.target:.2f}", ""


def _cores(line: Line) -> Styled:
    measured = line.ours is not None and line.ours.value is not None and line.ours.bytes
    return f"{line.ours.cores:.2f}" if line.ours is not None and measured else "", ""


def _cpu_s_per_gb(line: Line) -> Styled:
    ours = line.ours
    if ours is None or ours.value is None or not ours.bytes:
        return "", ""
    return number(sum(ours.cpu_seconds) / len(ours.cpu_seconds) / ours.bytes * CPU_GB), ""


def _data(line: Line) -> Styled:
    wrong = sum(m.wrong_bytes for m in line.measurements)
    return (f"{wrong:,} B wrong", "bold red") if wrong else ("ok", "")
