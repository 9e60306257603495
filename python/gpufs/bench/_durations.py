"""How long benchmarks take: measured times, which ``durations.json`` keeps.

``benchmarks/update_durations.py`` takes new times from results.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from gpufs.bench._results import Results

FILE: Final = Path(__file__).with_name("durations.json")

Durations: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""By kind of run and by benchmark: ``seconds``, ``file_bytes`` and ``machine``."""


@functools.cache
def known() -> Durations:
    """Returns the times of the file."""
    content: Durations = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def kind_of_run(device: str, quick: bool) -> str:
    return f"{device} quick" if quick else device


def expected_s(name: str, device: str, quick: bool, file_bytes: int | None = None) -> float:
    """Returns about how long a benchmark takes; 0 if that is not known.

    Args:
        name: the benchmark.
        device: "cuda" or "cpu".
        quick: whether the run is quick.
        file_bytes: the size of the file. A larger file than that of the measured run takes longer
            in proportion; a smaller one counts as that one. None: the size of the measured run.
    """
    entry = known().get(kind_of_run(device, quick), {}).get(name)
    if entry is None:
        return 0.0
    seconds, measured_bytes = float(entry["seconds"]), int(entry["file_bytes"])
    return seconds * max(1.0, (file_bytes or 0) / measured_bytes)


def machines(kind: str) -> list[str]:
    """Returns the machines of a kind of run, each once."""
    return list(dict.fromkeys(entry["machine"] for entry in known().get(kind, {}).values()))


def with_results(durations: Durations, results: Results) -> Durations:
    """Returns the times with those of complete tables in place of older ones."""
    kind = kind_of_run(results.device, results.quick)
    new = {
        table.name: {
            "seconds": round(table.wall_s, 1),
            "file_bytes": results.file_bytes,
            "machine": _machine_of(results),
        }
        for table in results.benchmarks
        if table.wall_s
    }
    return {**durations, kind: durations.get(kind, {}) | new}


def _machine_of(results: Results) -> str:
    if results.device == "cuda":
        return results.device_name
    host = results.machine["host"]
    return f"{host['processor']}, {host['cpus']} cores"


def to_json(durations: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the content of the file: a line for each benchmark."""
    kinds = []
    for kind, entries in durations.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(e)}" for name, e in entries.items())
        kinds.append(f" {json.dumps(kind)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def in_words(seconds: float) -> str:
    """Returns a duration, rounded as an estimate."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"
