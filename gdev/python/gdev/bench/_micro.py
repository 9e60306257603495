"""Figure 6: what gdev costs programs that have the GPU for themselves."""

from __future__ import annotations

from statistics import median
from typing import Final

from gdev.bench import _programs
from gdev.bench._results import Results, Table

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


def measure(names: list[str], runs: int, repeats: int, vgpu: str, results: Results) -> list[str]:
    """Runs the microprograms, alone and under gdev in turn, and prints the medians.

    A run's time is the median of its repeats. A program whose run fails is not run again. Returns
    the faults, one line each. Raises OSError.
    """
    program = _programs.find("micro")
    environments = _programs.environments(vgpu)
    table = Table(
        "Medians of a repeat: allocations, copies and kernels (figure 6)",
        program=8,
        alone=10,
        gdev=10,
        ratio=5,
        paper=0,
    )
    faults = []
    for name in names:
        seconds: dict[str, list[float]] = {kind: [] for kind in environments}
        fault = None
        for run in range(runs):
            for kind, environment in environments.items():
                outcome = _programs.run(program, [name, "--repeat", repeats], environment)
                results.runs += [
                    {"kind": kind, "run": run, "process_seconds": outcome.seconds, **line}
                    for line in outcome.lines
                ]
                if not outcome.is_right:
                    fault = f"{name}: {kind}: {outcome.fault}"
                    break
                seconds[kind].append(median(outcome.lines[-1]["seconds"]))
            if fault is not None:
                break
        if fault is not None:
            faults.append(fault)
            table.row(name, "failed", "failed", "-", PAPER[name])
            continue
        alone, gdev = (median(seconds[kind]) for kind in (_programs.ALONE, _programs.GDEV))
        results.summary.append(
            {"program": name, "alone": alone, "gdev": gdev, "ratio": gdev / alone}
        )
        table.row(
            name,
            f"{alone * 1e3:7.2f} ms",
            f"{gdev * 1e3:7.2f} ms",
            f"{gdev / alone:5.3f}",
            PAPER[name],
        )
    return faults
