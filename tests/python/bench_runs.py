"""Small runs of `gpufs bench`, and results made by hand."""

from __future__ import annotations

from typing import Any

from gpufs import bench

SMALL = ("bench", "--device", "cpu", "--quick", "--size", "4MiB")


def measured(
    name: str = "gpufs", value: float | None = 1.0, unit: Any = "GB/s", **more: Any
) -> bench.Measurement:
    return bench.Measurement(
        name, unit, value, **({"seconds": [1.0, 1.1], "cpu_seconds": [0.0, 0.0]} | more)
    )


def results_of(*lines: bench.Line, **more: Any) -> bench.Results:
    facts = {
        "version": "1",
        "commit": "c",
        "date": "d",
        "device": "cpu",
        "device_name": "the CPU",
        "quick": True,
    }
    table = bench.Table("random", "title", "page", list(lines))
    return bench.Results(
        **(facts | {"file_bytes": 4096, "machine": {}, "benchmarks": [table]} | more)
    )
