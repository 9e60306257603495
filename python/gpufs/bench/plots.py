"""Plots of results as PNG and PDF: one figure a benchmark, and one of all applications.

They need matplotlib (the extra ``gpufs[bench]``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpufs._plot_style import PIXELS_PER_INCH
from gpufs._plot_style import check as check
from gpufs.bench._applications import APPLICATIONS
from gpufs.bench._plot_applications import draw_applications
from gpufs.bench._plot_lines import draw_lines
from gpufs.bench._results import Results


def draw(results: Results, folder: str | Path) -> list[Path]:
    """Draws the applications, and each other benchmark with two values along its axis.

    Returns the written files.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the folder cannot be written.
    """
    check()
    Path(folder).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for table in results.benchmarks:
        if table.name not in APPLICATIONS:
            written += _save(draw_lines(results, table), folder, table.name)
    applications = sorted(
        (table for table in results.benchmarks if table.name in APPLICATIONS),
        key=lambda table: APPLICATIONS.index(table.name),
    )
    written += _save(draw_applications(results, applications), folder, "apps")
    return written


def _save(figure: Any | None, folder: str | Path, name: str) -> Iterator[Path]:  # noqa: ANN401
    if figure is None:
        return
    for suffix in ("png", "pdf"):
        path = Path(folder, f"{name}.{suffix}")
        figure.savefig(path, dpi=PIXELS_PER_INCH, bbox_inches="tight")
        yield path
