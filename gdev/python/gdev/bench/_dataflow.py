"""Figure 11: dataflows whose modules pass matrices on through the host, or by keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from gdev.bench import _programs
from gdev.bench._results import Layout, Part, Results, Table

# Seconds of the paper: through the host, and by keys, both under Gdev. Its text has those of one
# dataflow alone.
PAPER: Final = {("tree", "add", 1024): (1.424, 0.953)}

# The three ways, as the program names them under each kind of run, and as the summary does.
ALONE: Final = "alone"
COPIED: Final = "copied"
SHARED: Final = "shared"
_WAYS: Final = (ALONE, COPIED, SHARED)
# What tells one case from the others.
_AXES: Final = ("graph", "operation", "side", "memory")


@dataclass(frozen=True)
class Plan:
    """What is measured. Sides of matrices are numbers of rows."""

    graphs: list[str]
    depth: int
    width: int
    """Of the rectangle."""
    first: int
    """The smallest matrices; the next ones have twice as many rows."""
    add: int
    """The largest for additions; 0: none."""
    multiply: int
    runs: int
    repeats: int
    seed: int

    def settings(self) -> dict[str, Any]:
        """Returns it for the file of the results."""
        return asdict(self)

    def arguments(self) -> list[object]:
        """Returns what the program is told of it, but for the graph."""
        names = ("depth", "width", "first", "add", "multiply", "repeats", "seed")
        return [part for name in names for part in (f"--{name}", getattr(self, name))]


def _gain(slower: float, faster: float) -> str:
    """Returns a speedup as the paper counts it."""
    return f"{(slower / faster - 1) * 100:+.0f} %"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def both(first: float, second: float) -> str:
        return f"{first * 1e3:.0f} -> {second * 1e3:.0f} ms, {_gain(first, second)}"

    key = (row["graph"], row["operation"], row["side"])
    paper = "-"
    if key in PAPER and row["memory"] == "pageable":
        paper = both(*PAPER[key])
    return (
        row["graph"],
        row["operation"],
        f"{row['side']}",
        row["memory"],
        *(f"{row[way] * 1e3:8.2f} ms" for way in _WAYS),
        _gain(row[COPIED], row[SHARED]),
        both(row[f"whole_{COPIED}"], row[f"whole_{SHARED}"]),
        paper,
    )


_LAYOUT: Final = Layout(
    "Dataflows (figure 11). Medians of a round: copied through the host without gdev (alone) and\n"
    "under it, and shared by key. The whole contains the start of all processes too",
    {
        "graph": 9,
        "operation": 9,
        "side": 5,
        "memory": 8,
        "alone": 11,
        "copied": 11,
        "shared": 11,
        "gain": 7,
        "whole": 26,
        "paper": 0,
    },
    _cells,
)


def parts(result: dict[str, Any]) -> list[Part]:
    """Returns the tables of a stored result."""
    return [Part(_LAYOUT, result["summary"])]


def measure(plan: Plan, vgpu: str, results: Results) -> list[str]:
    """Measures the dataflows, alone and under gdev in turn, and prints medians.

    Returns the faults, one line each. Raises OSError.
    """
    program = _programs.find("dataflow")
    environments = _programs.environments(vgpu)
    table = Table(_LAYOUT)
    faults = []
    for graph in plan.graphs:
        lines: list[dict[str, Any]] = []
        fault = None
        for run in range(plan.runs):
            for kind, environment in _programs.in_turn(environments, run):
                is_shared = int(kind == _programs.GDEV)
                arguments = [graph, *plan.arguments(), "--shared", is_shared]
                outcome = _programs.run(program, arguments, environment)
                lines += [{"kind": kind, "run": run, **line} for line in outcome.lines]
                if not outcome.is_right:
                    fault = f"dataflow: {graph}: {kind}: {outcome.fault}"
                    break
            if fault is not None:
                break
        results.runs += lines
        if fault is not None:
            faults.append(fault)
            continue
        for row in _summary(lines):
            results.summary.append(row)
            table.row(row)
    return faults


def _summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each case: seconds of a round, and of the whole, by each way."""
    found: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for line in lines:
        way = ALONE if line["kind"] == _programs.ALONE else line["way"]
        case = found.setdefault(tuple(line[axis] for axis in _AXES), {})
        case.setdefault(way, []).append(line)
    rows = []
    for key, ways in found.items():
        row = dict(zip(_AXES, key, strict=True))
        for way in _WAYS:
            rounds = [median(line["seconds"]) for line in ways[way]]
            before = [line["start"] + line["prepare"] for line in ways[way]]
            row[way] = median(rounds)
            row[f"whole_{way}"] = median(map(sum, zip(before, rounds, strict=True)))
        rows.append(row)
    return rows
