"""Results as they are kept: JSON that says what was measured where."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpufs import _core, _machine
from gpufs.bench._measure import Measurement, Value, ratio
from gpufs.bench._world import World

SCHEMA: Final = 1  # raised when a reader of older results would misunderstand newer ones


class NotResultsError(ValueError):
    """A file that does not hold results that this version understands."""


@dataclass(frozen=True)
class Line:
    """A case that was measured."""

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


@dataclass(frozen=True)
class Table:
    """A benchmark that was run."""

    name: str
    title: str
    axis: str
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Results:
    """All of one run of the program."""

    version: str
    commit: str
    date: str
    device: str  # "cuda" or "cpu": the twin
    device_name: str
    quick: bool
    file_bytes: int
    machine: dict[str, Any]
    benchmarks: list[Table] = field(default_factory=list)

    @property
    def wrong_bytes(self) -> int:
        return sum(m.wrong_bytes for table in self.benchmarks for line in table.lines for m in line.measurements)

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA} | dataclasses.asdict(self), indent=1) + "\n"


def begin(world: World) -> Results:
    """Returns results without any benchmark yet."""
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
    """Reads what :meth:`Results.to_json` wrote.

    Raises:
        OSError: it cannot be read.
        NotResultsError: it holds something else.
    """
    try:
        content = json.loads(path.read_text())
        if content.pop("schema") != SCHEMA:
            raise NotResultsError(f"{path}: results of another version of gpufs bench")
        tables = [
            Table(**(table | {"lines": [_line(line) for line in table["lines"]]})) for table in content["benchmarks"]
        ]
        return Results(**(content | {"benchmarks": tables}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, NotResultsError):
            raise
        raise NotResultsError(f"{path}: these are no results of gpufs bench") from error


def _line(content: dict[str, Any]) -> Line:
    def measurement(values: dict[str, Any] | None) -> Measurement | None:
        return None if values is None else Measurement(**values)

    peers = [Measurement(**values) for values in content["peers"]]
    return Line(
        content["parameters"], measurement(content["ours"]), measurement(content["limit"]), content["target"], peers
    )


def _describe(world: World) -> dict[str, Any]:
    host = dataclasses.asdict(_machine.examine_host())
    host["processor"] = _processor()
    host["file_system"] = _machine.file_system_of(str(world.path.resolve().parent))
    del host["directory"]
    machine: dict[str, Any] = {"host": host, "built_with": _core.built_with}
    if world.device == "cuda":
        cuda = _core.examine_cuda()
        machine["cuda"] = {"driver_version": cuda["driver_version"], "built_version": cuda["built_version"]}
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
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    """Returns the commit of the sources that this runs from, with a mark where they were changed; or unknown.

    ``GPUFS_COMMIT``, if it is set, names it: for a copy of the sources, or what was installed from them.
    """

    def git(*arguments: str | Path) -> str:
        try:
            done = subprocess.run(["git", *arguments], cwd=here.parent, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip()

    if named := os.environ.get("GPUFS_COMMIT"):
        return named
    here = Path(__file__).resolve()
    # What is installed below somebody else's repository is not that repository's.
    if not git("ls-files", "--error-unmatch", here):
        return "unknown"
    return git("describe", "--always", "--dirty", "--abbrev=7", "--exclude=*") or "unknown"
