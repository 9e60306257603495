"""What ``gdev top`` shows: amounts, and rates between two looks.

``gdev top --json`` prints one object, :meth:`View.to_json`. Sizes are bytes. New fields may be
added.

``time``, ``seconds``
    Seconds since 1970; seconds since the look before, over which rates are computed.
``gpus``
    For each ``gpu`` (a number as ``gdev gpu list`` shows it) ``memory``, ``for_programs``,
    ``given``, ``overhead`` (what programs have beside their allocations), ``unaccounted`` (what is
    in use and no program's of gdev).
``vgpus``
    For each ``vgpu`` ``limit`` (null: none), ``used``, ``shared`` (of that: by keys),
    ``overhead`` (of that: no allocations), ``swapped``, ``wired``, ``programs`` (how many), and
    counts and rates.
``programs``
    For each ``process`` ``vgpu``, ``gpu`` (null: none yet), ``state``, ``used``, ``overhead``
    (of that), ``swapped``, ``wired``, and counts and rates.

What is ``wired`` does not leave the GPU with a turn; memory on other GPUs than ``gpu`` is part of
it.

Counts are since the program began; those of a virtual GPU include programs that have ended:
``launches``, ``fills``, ``to_device``, ``to_host``, ``unknown_functions``, ``bypasses``, ``turns``,
``bytes_out``, ``bytes_in``, ``moving_ns``, ``waiting_ns``, ``refusals``. Rates:
``launches_per_s``, ``bytes_out_per_s``, ``bytes_in_per_s``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpufs.sizes import format_size

from gdev._sight import Sight
from gdev._values import NO_LIMIT, format_limit, json_limit
from gdev.commands.table import table_lines

if TYPE_CHECKING:
    from rich.console import Group

_RATES: Final = ("launches", "bytes_out", "bytes_in")
_GPU_SIZES: Final = ("memory", "for_programs", "given", "overhead", "unaccounted")
_COUNT_HEADS: Final = (
    "TURNS",
    "OUT",
    "IN",
    "OUT GB/s",
    "IN GB/s",
    "WAITED",
    "REFUSED",
    "UNKNOWN",
    "LAUNCHES/s",
)
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class View:
    """Two looks, of which the later one is shown."""

    before: Sight
    now: Sight

    @property
    def seconds(self) -> float:
        """The time between the looks."""
        return self.now.clock_s - self.before.clock_s

    def to_json(self) -> dict[str, Any]:
        """Returns the object that the module's documentation describes."""
        vgpu_rates, program_rates = self._rates()
        return {
            "time": self.now.time_s,
            "seconds": self.seconds,
            "gpus": [one.to_json() for one in self.now.gpus],
            "vgpus": [
                {
                    "vgpu": one.vgpu.name,
                    "limit": json_limit(one.vgpu.limit),
                    "used": one.vgpu.used,
                    "shared": one.vgpu.shared,
                    "overhead": one.vgpu.overhead,
                    "swapped": one.swapped,
                    "wired": one.wired,
                    "programs": len(one.programs),
                }
                | one.counts
                | rates
                for one, rates in zip(self.now.vgpus, vgpu_rates, strict=True)
            ],
            "programs": [
                one.to_json() | one.counts | rates
                for one, rates in zip(self.now.programs(), program_rates, strict=True)
            ],
        }

    def _rates(self) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """Returns the rates of the virtual GPUs, and of the programs."""
        # By process: the daemon may be another one than before.
        programs_before = {(one.vgpu, one.process): one.counts for one in self.before.programs()}
        vgpus_before = {one.vgpu.name: one.counts for one in self.before.vgpus}
        return (
            [
                self._rates_of(vgpus_before.get(one.vgpu.name, {}), one.counts)
                for one in self.now.vgpus
            ],
            [
                self._rates_of(programs_before.get((one.vgpu, one.process), {}), one.counts)
                for one in self.now.programs()
            ],
        )

    def _rates_of(self, before: dict[str, int], now: dict[str, int]) -> dict[str, float]:
        return {
            f"{name}_per_s": max(now[name] - before.get(name, 0), 0) / self.seconds
            for name in _RATES
        }

    def tables(self) -> Iterator[tuple[tuple[str, ...], Rows]]:
        """Yields the heads and rows of the tables to show."""
        shown = self.to_json()
        yield (
            ("GPU", "MEMORY", "FOR PROGRAMS", "GIVEN", "OVERHEAD", "UNACCOUNTED"),
            [(one["gpu"], *(format_size(one[key]) for key in _GPU_SIZES)) for one in shown["gpus"]],
        )
        yield (
            ("VGPU", "USED", "LIMIT", "SWAPPED", "WIRED", "PROGRAMS", *_COUNT_HEADS),
            [
                (
                    one["vgpu"],
                    format_size(one["used"]),
                    format_limit(NO_LIMIT if one["limit"] is None else one["limit"]),
                    format_size(one["swapped"]),
                    format_size(one["wired"]),
                    str(one["programs"]),
                    *_count_texts(one),
                )
                for one in shown["vgpus"]
            ],
        )
        yield (
            ("PROCESS", "VGPU", "GPU", "STATE", "USED", "SWAPPED", "WIRED", *_COUNT_HEADS),
            [
                (
                    str(one["process"]),
                    one["vgpu"],
                    one["gpu"] or "-",
                    one["state"],
                    *(format_size(one[key]) for key in ("used", "swapped", "wired")),
                    *_count_texts(one),
                )
                for one in shown["programs"]
            ],
        )

    def lines(self) -> Iterator[str]:
        """Yields the view as plain text."""
        yield time.strftime("%H:%M:%S", time.localtime(self.now.time_s))
        for head, rows in self.tables():
            yield ""
            yield from table_lines(head, rows)

    def rich(self) -> Group:
        """Returns the view for a terminal."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        clock = time.strftime("%H:%M:%S", time.localtime(self.now.time_s))
        parts: list[Table | Text] = [Text(f"gdev  {clock}", style="bold")]
        for head, rows in self.tables():
            shown = Table(box=None, pad_edge=False)
            for title in head:
                shown.add_column(Text(title))
            for row in rows:
                shown.add_row(*(Text(text) for text in row))
            parts += [Text(""), shown]
        return Group(*parts)


def _count_texts(one: dict[str, Any]) -> Iterable[str]:
    return (
        str(one["turns"]),
        format_size(one["bytes_out"]),
        format_size(one["bytes_in"]),
        f"{one['bytes_out_per_s'] / 1e9:.2f}",
        f"{one['bytes_in_per_s'] / 1e9:.2f}",
        f"{one['waiting_ns'] / 1e9:.1f} s",
        str(one["refusals"]),
        str(one["unknown_functions"]),
        f"{one['launches_per_s']:,.0f}",
    )
