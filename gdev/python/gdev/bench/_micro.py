"""Figure 6: what gdev costs programs that have the GPU for themselves."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from statistics import median
from typing import Any, Final

from gdev.bench import _programs
from gdev.bench._changes import Change, change
from gdev.bench._results import Layout, Part, Results, Table

# The microprograms of table 1, and what the paper's text says of the time under Gdev, compared with
# NVIDIA's software. The text has a number for LOOP alone.
PAPER: Final = {
    "LOOP": "about 20 % slower",
    "MADD": "-",
    "MMUL": "-",
    "CPY": "-",
    "PINCPY": "little difference",
    "BP": "slower",
    "BFS": "little difference",
    "HW": "clearly slower",
    "HS": "little difference",
    "LUD": "-",
    "NN": "-",
    "NW": "-",
    "SRAD": "clearly slower",
    "SRAD2": "-",
}
# 20 times cudaMalloc() and cudaFree() of so many MiB; 100,000 launches of an empty kernel.
OTHERS: Final = ("MALLOC1", "MALLOC16", "MALLOC256", "LAUNCH")
NAMES: Final = (*PAPER, *OTHERS)

# How long a pair of processes is measured at least, of each kind; and the most blocks for that.
_PAIR_S: Final = 0.3
_BLOCKS_MAX: Final = 100


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    whole = Change(row["process_ratio"], row["process_low"], row["process_high"])
    return (
        row["program"],
        f"{row[_programs.ALONE] * 1e3:7.2f} ms",
        f"{row[_programs.GDEV] * 1e3:7.2f} ms",
        str(Change(row["ratio"], row["low"], row["high"])),
        str(whole),
        PAPER.get(row["program"], "not in it"),
    )


_LAYOUT: Final = Layout(
    "A repeat: allocations, copies and kernels (figure 6). Medians; the change under gdev with its "
    "interval of 95 %",
    {"program": 9, "alone": 10, "gdev": 10, "repeat": 22, "whole_process": 22, "paper": 0},
    _cells,
)


def parts(result: dict[str, Any]) -> list[Part]:
    """Returns the tables of a stored result."""
    return [Part(_LAYOUT, result["summary"], _of_all(result["summary"]))]


def _of_all(rows: list[dict[str, Any]]) -> str:
    """Returns what to say of the paper's programs together: each counts as much as another."""
    ratios = [row["ratio"] for row in rows if row["program"] in PAPER]
    if len(ratios) < 2:
        return ""
    mean = change([[(1.0, one)] for one in ratios])
    return f"The repeats of these {len(ratios)} programs of the paper, geometric mean: {mean}."


def measure(names: list[str], runs: int, repeats: int, vgpu: str, results: Results) -> list[str]:
    """Runs the microprograms, alone and under gdev in turn, and prints the medians.

    In a run both kinds of the program are there, and wait. Their repeats are done in turn, in
    blocks: alone, gdev, gdev, alone, and every second time the other way. A program whose run fails
    is not run again. Returns the faults, one line each. Raises OSError.
    """
    program = _programs.find("micro")
    environments = _programs.environments(vgpu)
    table = Table(_LAYOUT)
    faults = []
    for name in names:
        pairs: list[dict[str, _programs.SteppedProcess]] = []
        fault = None
        for run in range(runs):
            kinds = _programs.in_turn(environments, run)
            pair, fault = _run_pair(program, name, kinds, repeats, run, results)
            if fault is not None:
                break
            pairs.append(pair)
        if fault is not None:
            faults.append(f"{name}: {fault}")
            table.cells(name, "failed", "failed", "-", "-", PAPER.get(name, "not in it"))
            continue
        results.summary.append(_summary(name, pairs))
        table.row(results.summary[-1])
    if said := _of_all(results.summary):
        print(f"\n{said}")
    return faults


def _run_pair(
    program: Path,
    name: str,
    kinds: list[tuple[str, dict[str, str]]],
    repeats: int,
    run: int,
    results: Results,
) -> tuple[dict[str, _programs.SteppedProcess], str | None]:
    """Measures a process of each kind. Returns them, and what went wrong. Raises OSError."""
    processes: dict[str, _programs.SteppedProcess] = {}
    fault = None
    with contextlib.ExitStack() as running:
        for kind, environment in kinds:
            process = _programs.SteppedProcess(program, [name, "--repeat", 0], environment)
            running.enter_context(process)
            processes[kind] = process
        first, second = processes.values()
        blocks = repeats
        block = 0
        is_going = True
        while block < blocks and is_going:
            one, other = (first, second) if block % 2 == 0 else (second, first)
            is_going = all(process.step() for process in (one, other, other, one))
            if block == 0 and is_going:
                shortest = min(sum(process.seconds) for process in processes.values())
                enough = math.ceil(_PAIR_S / max(shortest, 1e-9))
                blocks = max(repeats, min(enough, _BLOCKS_MAX))
            block += 1
        for kind, process in processes.items():
            outcome = process.outcome()
            results.runs += [
                {"kind": kind, "run": run, "process_seconds": process.wall_seconds, **line}
                for line in outcome.lines
            ]
            if fault is None and not outcome.is_right:
                fault = f"{kind}: {outcome.fault}"
            elif fault is None and len(process.seconds) != 2 * block:
                fault = f"{kind}: it ended before its last repeat"
    return processes, fault


def _summary(name: str, pairs: list[dict[str, _programs.SteppedProcess]]) -> dict[str, Any]:
    repeat = change(
        [
            list(zip(pair[_programs.ALONE].seconds, pair[_programs.GDEV].seconds, strict=True))
            for pair in pairs
        ]
    )
    whole = change(
        [
            [(pair[_programs.ALONE].wall_seconds, pair[_programs.GDEV].wall_seconds)]
            for pair in pairs
        ]
    )
    row: dict[str, Any] = {"program": name}
    for kind in (_programs.ALONE, _programs.GDEV):
        row[kind] = median(median(pair[kind].seconds) for pair in pairs)
        row[f"process_{kind}"] = median(pair[kind].wall_seconds for pair in pairs)
    row |= {"ratio": repeat.ratio, "low": repeat.low, "high": repeat.high}
    row |= {"process_ratio": whole.ratio, "process_low": whole.low, "process_high": whole.high}
    return row
