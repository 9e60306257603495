"""The same programs under nothing, gdev, nvshare and HAMi-core (docs/rivals.md)."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpufs.sizes import format_size

from gdev.bench import _programs, _sharing
from gdev.bench._results import Layout, Results, Table
from gdev.bench._sharing import GDEV, HAMI, NOTHING, NVSHARE, UnableError, Way

PARTS: Final = ("launches", "training", "limit", "together", "bursts")
_OF_TRAININGS: Final = ("training", "together")
_KINDS: Final = {
    "alloc": "cudaMalloc",
    "async": "cudaMallocAsync",
    "chunk": "cuMemCreate",
    "array": "cudaMallocArray",
    "managed": "cudaMallocManaged",
}
# What a program has beside the memory that PyTorch reserves: context, modules.
_BESIDE_BYTES: Final = 2 << 30
# Trainings begin together: by then all have their models.
_HEAD_START_S: Final = 20.0
_RATIO: Final = 1.3
_HANGS_MAX: Final = 2
_SHORT_NS: Final = 1_000_000
_LONG_NS: Final = 50_000_000
_PAUSE_US: Final = 9_000
# Bursts begin together: by then both programs have their contexts.
_BURST_HEAD_START_S: Final = 3.0


@dataclass(frozen=True)
class Plan:
    """What is measured. Sizes are bytes."""

    parts: list[str]
    launches: int
    training: list[str]
    """A command that trains, as tests/programs/torch_training.py; none if empty."""
    limit: int
    piece: int
    seconds: float
    """How long bursts run."""
    timeout_s: float
    """No program runs for longer."""


@dataclass
class _Bench:
    plan: Plan
    ways: list[Way]
    results: Results
    program: Path
    table: Table
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    training_alone: dict[str, Any] | None = None
    hangs: Counter[str] = field(default_factory=Counter)

    def row(self, title: str, measure: Callable[[Way], str]) -> None:
        """Measures under each way, and prints the row. What is not possible becomes a note."""
        cells = {}
        for way in self.ways:
            try:
                self.give_up_after_hangs(way)
                cells[way.name] = measure(way)
            except UnableError as reason:
                self.note(way, title, str(reason))
                cells[way.name] = f"- [{len(self.notes)}]"
        found = {"measure": title, **cells}
        self.results.summary.append(found)
        self.table.row(found)

    def give_up_after_hangs(self, way: Way) -> None:
        """Raises UnableError after programs that did not end: each costs the whole time."""
        if self.hangs[way.name] >= _HANGS_MAX:
            raise UnableError(f"not run: {_HANGS_MAX} programs before it hung")

    def note(self, way: Way, title: str, reason: str) -> None:
        text = f"{way.name}: {title}: {reason}"
        self.notes.append(text)
        if way.name in (NOTHING, GDEV) and not reason.startswith("not run"):
            self.faults.append(text)

    def start(
        self, stack: contextlib.ExitStack, environment: dict[str, str], *arguments: object
    ) -> _programs.Process:
        return stack.enter_context(_programs.Process(self.program, arguments, environment))

    def end(self, way: Way, process: _programs.Process) -> dict[str, Any]:
        """Waits for the end of a program. Returns its last line. Raises UnableError: it failed."""
        outcome = process.outcome(self.plan.timeout_s)
        self.results.runs += [{"kind": way.name, **line} for line in outcome.lines]
        self.hangs[way.name] += outcome.was_killed
        if not outcome.is_right:
            raise UnableError(f"failed: {outcome.fault}")
        return outcome.lines[-1]

    def run(self, way: Way, *arguments: object, limit: int | None = None) -> dict[str, Any]:
        """Runs the benchmark's program to its end. Returns its last line. Raises UnableError."""
        environment = way.environment("a", limit if way.has_limits else None)
        with contextlib.ExitStack() as stack:
            return self.end(way, self.start(stack, environment, *arguments))

    def free_bytes(self) -> int:
        return int(self.run(self.ways[0], "limit", "alloc", "--most", 0)["free"])


def measure(plan: Plan, nvshare: Path | None, hami: Path | None, results: Results) -> list[str]:
    """Measures the parts of the plan and prints a table.

    Returns the faults of gdev, or of programs alone; those of others are results. Raises OSError.
    """
    program = _programs.find("rivals")
    with _sharing.ways(nvshare, hami) as found:
        widths = {"measure": 36} | {way.name.replace("-", "_"): 22 for way in found}
        title = "The same programs under each way to share a GPU"
        table = Table(Layout(title, widths, lambda row: tuple(row.values())))
        bench = _Bench(plan, found, results, program, table)
        for part in PARTS:
            if part in _OF_TRAININGS and not plan.training:
                continue
            if part in plan.parts:
                try:
                    _MEASURES[part](bench)
                except UnableError as reason:  # of what all ways need
                    bench.note(found[0], part, str(reason))
        print()
        for number, note in enumerate(bench.notes, 1):
            print(f"[{number}] {note}")
        results.summary.append({"notes": bench.notes})
        return bench.faults


def _launches(bench: _Bench) -> None:
    def one(way: Way) -> str:
        said = bench.run(way, "launches", "--count", bench.plan.launches)
        return f"{said['us']:8.3f} us"

    bench.row("empty launch", one)


# --- Limits ---


def _limit(bench: _Bench) -> None:
    plan = bench.plan
    most = plan.limit + plan.limit // 2
    sizes = ("--piece", plan.piece, "--most", most)
    about = f"limit {format_size(plan.limit)}"
    free = bench.free_bytes()

    def check_managed(way: Way) -> None:
        if way.name == NVSHARE and most > free:
            raise UnableError("not run: the GPU has too little free for managed memory")

    def seen(way: Way) -> str:
        said = bench.run(way, "limit", "alloc", "--most", 0, limit=plan.limit)
        return f"{_gib(said['free'])} of {_gib(said['total'])}"

    bench.row(f"{about}: cudaMemGetInfo", seen)
    for kind, name in _KINDS.items():

        def got(way: Way, kind: str = kind) -> str:
            check_managed(way)
            said = bench.run(way, "limit", kind, *sizes, limit=plan.limit)
            return f"{_gib(said['got'])}" + (
                f", error {said['error']}" if said["error"] else ", not refused"
            )

        bench.row(f"{about}: {name}", got)

    def neighbour(way: Way) -> str:
        check_managed(way)
        limit = plan.limit if way.has_limits else None
        with contextlib.ExitStack() as stack:
            hold_ms = int(plan.timeout_s * 1000)
            first = bench.start(
                stack,
                way.environment("a", limit),
                *("limit", "alloc", *sizes, "--hold-ms", hold_ms),
            )
            first.wait_for_line(plan.timeout_s)
            wanted = 4 * plan.piece
            arguments = ("limit", "alloc", "--piece", plan.piece, "--most", wanted)
            said = bench.end(way, bench.start(stack, way.environment("b", limit), *arguments))
        return f"{_gib(said['got'])} of {_gib(wanted)}"

    bench.row(f"{about}: a neighbour gets", neighbour)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"


# --- Trainings ---


def _train(
    bench: _Bench, way: Way, environments: Sequence[dict[str, str]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Trains at once in each environment. Returns what those said that ended, and the faults."""
    program, *arguments = bench.plan.training
    start = time.time() + (_HEAD_START_S if len(environments) > 1 else 0)
    said, faults = [], []
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                _programs.Process(
                    Path(program), [*arguments, "--seed", seed, "--start", start], environment
                )
            )
            for seed, environment in enumerate(environments)
        ]
        for process in running:
            try:
                said.append(bench.end(way, process))
            except UnableError as reason:
                faults.append(str(reason))
    return said, faults


def _train_alone(bench: _Bench, way: Way) -> dict[str, Any]:
    if way.name == NOTHING and bench.training_alone is not None:
        return bench.training_alone
    said, faults = _train(bench, way, [way.environment("a")])
    if faults:
        raise UnableError(faults[0])
    if way.name == NOTHING:
        bench.training_alone = said[0]
    return said[0]


def _training(bench: _Bench) -> None:
    def one(way: Way) -> str:
        said = _train_alone(bench, way)
        same = bench.training_alone is None or said["losses"] == bench.training_alone["losses"]
        step_s = (said["end"] - said["begin"]) / len(said["losses"])
        return f"{step_s * 1e3:8.2f} ms" + ("" if same else ", other losses")

    bench.row("training step, alone", one)


def _together(bench: _Bench) -> None:
    def makespan(way: Way, environments: Sequence[dict[str, str]]) -> str:
        alone = _train_alone(bench, bench.ways[0])
        said, faults = _train(bench, way, environments)
        if faults:
            raise UnableError(f"{len(faults)} of {len(environments)} {faults[0]}")
        seconds = max(one["end"] for one in said) - min(one["begin"] for one in said)
        after_another = (alone["end"] - alone["begin"]) * len(environments)
        return f"{seconds:6.1f} s, {seconds / after_another:.2f} x"

    def needed() -> int:
        return 2 * (int(_train_alone(bench, bench.ways[0])["reserved_mib"]) << 20)

    def fitting(way: Way, turn_s: int = 30) -> str:
        if needed() + 2 * _BESIDE_BYTES > bench.free_bytes():
            raise UnableError("not run: two trainings do not fit this GPU")
        if way.name == NVSHARE:
            way.set_turn(turn_s)
        return makespan(way, [way.environment("a"), way.environment("b")])

    def short_turns(way: Way) -> str:
        if way.name != NVSHARE:
            return ""
        try:
            return fitting(way, turn_s=2)
        finally:
            way.set_turn(30)

    def beyond(way: Way) -> str:
        most = int(needed() / _RATIO)
        if way.name == GDEV:
            with _sharing.gpu_memory(most):
                return makespan(way, [way.environment("a"), way.environment("b")])
        if way.name == HAMI:  # one container, of so much memory
            return makespan(way, [way.environment("c", most)] * 2)
        if way.name == NVSHARE:
            raise UnableError("not run: managed memory beyond what is free can hang the GPU")
        raise UnableError("not run: it has no smaller GPU")

    bench.row("2 trainings that fit, x one by one", fitting)
    if any(way.name == NVSHARE for way in bench.ways):
        bench.row("the same, turns of 2 s", short_turns)
    bench.row(f"2 that need {_RATIO} x the memory", beyond)


# --- Bursts ---


def _bursts(bench: _Bench) -> None:
    nothing = bench.ways[0]
    works = [
        int(bench.run(nothing, "calibrate", "--ns", size)["work"]) for size in (_SHORT_NS, _LONG_NS)
    ]
    options = [
        ("bursts", "--work", work, "--pause-us", pause)
        for work, pause in zip(works, (_PAUSE_US, 0), strict=True)
    ]
    ms = int(bench.plan.seconds * 1000)
    alone = [bench.run(nothing, *one, "--ms", ms // 4)["finished"] * 4 for one in options]

    def both(way: Way, more: dict[str, str]) -> list[str]:
        start_ms = int((time.time() + _BURST_HEAD_START_S) * 1000)
        at = ("--ms", ms, "--start-ms", start_ms)
        with contextlib.ExitStack() as stack:
            running = [
                bench.start(stack, way.environment(group) | more, *one, *at)
                for group, one in zip("ab", options, strict=True)
            ]
            said = [bench.end(way, one) for one in running]
        return [
            f"{one['finished']} ({100 * one['finished'] / max(most, 1):.0f} %)"
            for one, most in zip(said, alone, strict=True)
        ]

    def rows(about: str, more: dict[str, str], names: tuple[str, ...]) -> None:
        measured: dict[str, list[str] | UnableError] = {}
        for way in bench.ways:
            try:
                bench.give_up_after_hangs(way)
                measured[way.name] = both(way, more) if way.name in names else ["", ""]
            except UnableError as reason:
                measured[way.name] = reason

        def cell(way: Way, index: int) -> str:
            found = measured[way.name]
            if isinstance(found, UnableError):
                raise found
            return found[index]

        bench.row(f"1 ms, pauses of 9 ms{about}", lambda way: cell(way, 0))
        bench.row(f"beside 50 ms, no pauses{about}", lambda way: cell(way, 1))

    rows("", {}, (NOTHING, GDEV, NVSHARE, HAMI))
    if any(way.name == HAMI for way in bench.ways):
        rows(": 50 % each", {"CUDA_DEVICE_SM_LIMIT": "50"}, (HAMI,))


_MEASURES: Final[dict[str, Callable[[_Bench], None]]] = {
    "launches": _launches,
    "training": _training,
    "limit": _limit,
    "together": _together,
    "bursts": _bursts,
}


def training_command(program: Path | None, arguments: str) -> list[str]:
    """Returns the command of a training; an empty one without a program."""
    if program is None:
        return []
    return [sys.executable, str(program), *arguments.split()]
