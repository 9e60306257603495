"""The parts of a benchmark, and how it is measured."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Unit: TypeAlias = Literal["GB/s", "TFLOP/s", "M/s", "k/s", "us", "ms/GB", "% of a core"]

# For these units, less is better.
LESS_IS_BETTER: tuple[Unit, ...] = ("us", "ms/GB", "% of a core")

# A longer run is not repeated: its own warm-up is a small part of it.
LONG_S: Final = 5.0

Value: TypeAlias = str | int
Counters: TypeAlias = dict[str, int]


class AbsentError(Exception):
    """Something cannot be measured on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers of one run."""

    seconds: float
    cpu_seconds: float
    operations: int
    bytes: int
    wrong_bytes: int
    counters: Counters = field(default_factory=dict)


Source: TypeAlias = Callable[[], Generator[Sample]]
"""Yields run after run. Sets up what the runs share once, and releases it at the end."""


@dataclass(frozen=True, eq=False)
class Task:
    """A named measurement. A source of several tasks is measured once."""

    name: str
    unit: Unit
    source: Source


@dataclass(frozen=True)
class Case:
    """A line of a benchmark's table."""

    parameters: dict[str, Value]
    ours: Task | None
    limit: Task | None = None  # the limit to compare ours with
    target: float | None = None  # the intended ratio to the limit
    peers: Sequence[Task] = ()


@dataclass(frozen=True)
class Measurement:
    """The result of a task."""

    name: str
    unit: Unit
    value: float | None  # the median run, in the unit; None: absent
    absent: str = ""  # the reason
    seconds: list[float] = field(default_factory=list)  # of each run
    cpu_seconds: list[float] = field(default_factory=list)
    operations: int = 0
    bytes: int = 0
    wrong_bytes: int = 0  # of all runs, including the warm-up
    counters: Counters = field(default_factory=dict)  # of the last run

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the runs' times, relative to their median."""
        return (max(self.seconds) - min(self.seconds)) / self.median_s if self.seconds else 0.0

    @property
    def cores(self) -> float:
        """The median of host CPU time over wall time."""
        return statistics.median(
            cpu / wall if wall else 0.0
            for cpu, wall in zip(self.cpu_seconds, self.seconds, strict=True)
        )


def in_unit(unit: Unit, seconds: float, operations: int, bytes_: int, cpu_seconds: float) -> float:
    """Returns a run's value in a unit."""
    if unit == "GB/s":
        return bytes_ / seconds / 1e9
    if unit == "TFLOP/s":
        return operations / seconds / 1e12
    if unit == "M/s":
        return operations / seconds / 1e6
    if unit == "k/s":
        return operations / seconds / 1e3
    if unit == "us":
        return seconds / operations * 1e6
    if unit == "ms/GB":
        return seconds / bytes_ * 1e12
    return cpu_seconds / seconds * 100


def restated(measurement: Measurement, task: Task) -> Measurement:
    """Returns a measurement as the value of another task with the same source."""
    value = measurement.value
    if value is not None and task.unit != measurement.unit:
        cpu = statistics.median(measurement.cpu_seconds)
        value = in_unit(
            task.unit, measurement.median_s, measurement.operations, measurement.bytes, cpu
        )
    return dataclasses.replace(measurement, name=task.name, unit=task.unit, value=value)


def ratio(ours: Measurement | None, limit: Measurement | None) -> float | None:
    """Returns ours relative to the limit; above 1 is better than the limit, for all units."""
    if ours is None or limit is None or not ours.value or not limit.value:
        return None
    return limit.value / ours.value if ours.unit in LESS_IS_BETTER else ours.value / limit.value


def measure(task: Task, runs: int) -> Measurement:
    """Runs a task once to warm up, then ``runs`` times; a long task only once.

    If this machine cannot run it (a missing library, an unsupported feature, too little memory),
    the result is absent, not an error.
    """
    try:
        with contextlib.closing(task.source()) as source:
            samples = [next(source)]
            if samples[0].seconds <= LONG_S:
                samples += itertools.islice(source, runs)
    except AbsentError as why:
        return Measurement(task.name, task.unit, None, str(why))
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOMEM):
            raise
        return Measurement(task.name, task.unit, None, error.strerror or str(error))
    timed = samples[1:] or samples
    middle = statistics.median(sample.seconds for sample in timed)
    cpu = statistics.median(sample.cpu_seconds for sample in timed)
    last = timed[-1]
    return Measurement(
        task.name,
        task.unit,
        in_unit(task.unit, middle, last.operations, last.bytes, cpu),
        seconds=[sample.seconds for sample in timed],
        cpu_seconds=[sample.cpu_seconds for sample in timed],
        operations=last.operations,
        bytes=last.bytes,
        wrong_bytes=sum(sample.wrong_bytes for sample in samples),
        counters=last.counters,
    )
