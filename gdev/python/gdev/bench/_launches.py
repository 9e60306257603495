"""What gdev adds to a launch, measured in one process."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

from gdev.bench import _programs
from gdev.bench._changes import Change, change
from gdev.bench._results import Layout, Part, Results, print_part


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(row["runs"]),
        f"{row['past_us']:.3f} us",
        f"{row['gdev_us']:.3f} us",
        str(Change(row["ratio"], row["low"], row["high"])),
    )


_LAYOUT: Final = Layout(
    "An empty launch, past gdev and through it in one process, in turn. Medians; the change with "
    "its interval of 95 %",
    {"runs": 5, "past_gdev": 10, "gdev": 10, "change": 0},
    _cells,
)


def parts(result: dict[str, Any]) -> list[Part]:
    """Returns the tables of a stored result."""
    return [Part(_LAYOUT, result["summary"])]


def measure(count: int, blocks: int, runs: int, vgpu: str, results: Results) -> list[str]:
    """Measures launches in several processes under gdev, and prints the medians.

    Returns the faults, one line each. Raises OSError.
    """
    program = _programs.find("launches")
    environment = _programs.environments(vgpu)[_programs.GDEV]
    lines = []
    for run in range(runs):
        outcome = _programs.run(program, ["--count", count, "--blocks", blocks], environment)
        if not outcome.is_right:
            return [f"launches: {outcome.fault}"]
        lines.append(outcome.lines[0])
        results.runs.append({"run": run, **lines[-1]})
    found = change([list(zip(one["past_us"], one["gdev_us"], strict=True)) for one in lines])
    results.summary.append(
        {
            "runs": runs,
            **{way: median(median(one[way]) for one in lines) for way in ("past_us", "gdev_us")},
            "ratio": found.ratio,
            "low": found.low,
            "high": found.high,
        }
    )
    for part in parts({"summary": results.summary}):
        print_part(part)
    return []
