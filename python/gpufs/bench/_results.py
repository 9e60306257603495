"""Results as JSON files, with a description of the machine."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from gpufs import _core, _machine
from gpufs.bench._measure import Measurement, Value, ratio
from gpufs.bench._world import World

_Made = TypeVar("_Made")

SCHEMA: Final = 1  # increased when a reader of the old format would misunderstand the new one


class NotResultsError(ValueError):
    """A file does not contain results that this version understands."""


@dataclass(frozen=True)
class Line:
    """A measured case."""

    parameters: dict[str, Value]
    ours: Measurement | None
    limit: Measurement | None
    target: float | None
    peers: list[Measurement] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        return ratio(self.ours, self.limit)

    @property
    def measurements(self) -> list[Measurement]:
        return [m for m in (self.ours, self.limit, *self.peers) if m is not None]


@dataclass
class Table:
    """The measured lines of a benchmark."""

    name: str
    title: str
    axis: str
    lines: list[Line] = field(default_factory=list)
    wall_s: float = 0.0  # time that all lines took, with preparations; 0: some are missing


@dataclass(frozen=True)
class Results:
    """The results of one run of the program."""

    version: str
    commit: str
    date: str
    device: str  # "cuda", or "cpu" for the CPU device
    device_name: str
    quick: bool
    file_bytes: int
    machine: dict[str, Any]
    benchmarks: list[Table] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # not, or not all, measured: out of time

    @property
    def wrong_bytes(self) -> int:
        return sum(
            m.wrong_bytes
            for table in self.benchmarks
            for line in table.lines
            for m in line.measurements
        )

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA} | dataclasses.asdict(self), indent=1) + "\n"


def begin(world: World) -> Results:
    """Returns results without benchmarks."""
    return Results(
        version=_core.__version__,
        commit=_commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        device=world.device,
        device_name=world.device_name,
        quick=world.quick,
        file_bytes=world.file_bytes,
        machine=_describe(world),
    )


def read(path: Path) -> Results:
    """Reads a file of :meth:`Results.to_json`.

    Raises:
        OSError: the file cannot be read.
        NotResultsError: the file contains something else.
    """
    try:
        content = json.loads(path.read_text())
        if content.pop("schema") != SCHEMA:
            raise NotResultsError(f"{path}: results of another version of gpufs bench")
        tables = [
            _made(Table, table | {"lines": [_line(line) for line in table["lines"]]})
            for table in content["benchmarks"]
        ]
        return _made(Results, content | {"benchmarks": tables})
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        if isinstance(error, NotResultsError):
            raise
        raise NotResultsError(f"{path}: these are no results of gpufs bench") from error


# Types of the fields of all three classes. A bool is not a number.
_NUMBER: Final = (int, float)
_LARGEST: Final = 2.0**80  # in any unit
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(
        ("name", "unit", "absent", "title", "axis", "version", "commit", "date"), (str,)
    ),
    **dict.fromkeys(("device", "device_name"), (str,)),
    **dict.fromkeys(("operations", "bytes", "wrong_bytes", "file_bytes"), (int,)),
    **dict.fromkeys(("value", "target"), (*_NUMBER, type(None))),
    "wall_s": _NUMBER,
    **dict.fromkeys(
        ("seconds", "cpu_seconds", "lines", "peers", "benchmarks", "left_out"), (list,)
    ),
    **dict.fromkeys(("parameters", "counters", "machine"), (dict,)),
    "quick": (bool,),
}


def _is_a(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


def _made(kind: type[_Made], fields: dict[str, Any]) -> _Made:
    """Makes a dataclass from a file's fields, after a check of their types."""
    for name, value in fields.items():
        if name in _KINDS and not _is_a(value, _KINDS[name]):
            raise TypeError(f"{name} of another type")
        if name in ("seconds", "cpu_seconds") and not all(
            _is_a(item, _NUMBER) and item >= 0 for item in value
        ):
            raise TypeError(f"{name} that are no times")
        if name == "left_out" and not all(isinstance(item, str) for item in value):
            raise TypeError(f"{name} of another type")
        if name == "wall_s" and value < 0:
            raise TypeError(f"{name} that is no time")
        if name in ("parameters", "counters") and not all(
            isinstance(item, (*_NUMBER, str)) for item in value.values()
        ):
            raise TypeError(f"{name} of another type")
        for number in (
            value
            if isinstance(value, list)
            else value.values()
            if isinstance(value, dict)
            else [value]
        ):
            # Rejects infinity and NaN, too.
            if isinstance(number, _NUMBER) and not abs(number) < _LARGEST:
                raise TypeError(f"{name} that is too large")
    if "seconds" in fields and (
        len(fields["seconds"]) != len(fields["cpu_seconds"]) or 0 in fields["seconds"]
    ):
        raise TypeError("times of other runs")
    return kind(**fields)


def _line(content: dict[str, Any]) -> Line:
    def measurement(values: dict[str, Any] | None) -> Measurement | None:
        return None if values is None else _made(Measurement, values)

    peers = [_made(Measurement, values) for values in content["peers"]]
    fields = {
        "parameters": content["parameters"],
        "ours": measurement(content["ours"]),
        "limit": measurement(content["limit"]),
        "target": content["target"],
        "peers": peers,
    }
    return _made(Line, fields)


def _describe(world: World) -> dict[str, Any]:
    host = dataclasses.asdict(_machine.examine_host())
    host["processor"] = _processor()
    host["file_system"] = _machine.file_system_of(str(world.path.resolve().parent))
    del host["directory"]
    machine: dict[str, Any] = {"host": host, "built_with": _core.built_with}
    if world.device == "cuda":
        cuda = _core.examine_cuda()
        machine["cuda"] = {
            "driver_version": cuda["driver_version"],
            "built_version": cuda["built_version"],
        }
        machine["driver"] = _machine.driver_release()
        machine["gpus"] = cuda["gpus"]
        link = _machine.pcie_link(cuda["gpus"][0]["pci_address"])
        machine["pcie"] = None if link is None else dataclasses.asdict(link)
    return machine


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )


def _commit() -> str:
    """Returns the commit of the sources, with a mark if they were changed; or "unknown".

    ``GPUFS_COMMIT`` overrides it, for copies of the sources and installed packages.
    """

    def git(*arguments: str | Path) -> str:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=here.parent, capture_output=True, text=True, check=False
            )
        except OSError:
            return ""
        return done.stdout.strip()

    if named := os.environ.get("GPUFS_COMMIT"):
        return named
    here = Path(__file__).resolve()
    # A package installed inside another repository does not belong to that repository.
    if not git("ls-files", "--error-unmatch", here):
        return "unknown"
    return git("describe", "--always", "--dirty", "--abbrev=7", "--exclude=*") or "unknown"
