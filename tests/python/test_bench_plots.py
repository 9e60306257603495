"""Figures of `gpufs bench`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from gpufs import bench
from gpufs.bench import _measure, _results, plots

from .bench_runs import SMALL, measured
from .conftest import TIMEOUT_S, Command


def test_plots_without_matplotlib_are_one_line_before_any_work(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None; from gpufs.cli import main;"
        f"sys.exit(main(['bench', '--device', 'cpu', 'random', '--plot', {str(tmp_path)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stderr == b"gpufs: plots need matplotlib: pip install 'gpufs[bench]'\n"
    assert (done.stdout, done.returncode) == (b"", 2)


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_plots_are_drawn_for_benchmarks_with_an_axis(
    run: Command, tmp_path: Path, bench_file: Path
) -> None:
    done = run(*SMALL, "random", "reopen", "--file", bench_file, "--plot", tmp_path / "plots")
    assert done.returncode == 0
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "random.pdf",
        "random.png",
    ]


def test_what_changes_with_the_axis_makes_no_series_of_its_own() -> None:
    cases = [
        ("map", 512, 512),
        ("map", 4096, 4096),
        ("read", 4096, 1024),
        ("read", 4096, 4096),
        ("read", 65536, 4096),
    ]
    lines = [
        _results.Line({"access": access, "page": page, "chunk": chunk}, None, None, None)
        for access, page, chunk in cases
    ]
    assert plots._kinds(_results.Table("hits", "Hits", "chunk", lines), lines) == [
        *["map"] * 2,
        *["read, page 4 KiB"] * 2,
        "read, page 64 KiB",
    ]


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_plots_leave_out_rows_that_have_no_place_on_the_axis(tmp_path: Path) -> None:
    def line(value: float, **parameters: _results.Value) -> _results.Line:
        return _results.Line(parameters, _measure.Measurement("gpufs", "GB/s", value), None, None)

    lines = [
        line(3, what="cached"),
        line(1, what="file", workers=1),
        line(2, what="file", workers=8),
    ]
    table = _results.Table("writing", "Writing", "workers", lines)
    results = _results.Results("0", "none", "today", "cpu", "the CPU", True, 1, {}, [table])
    assert [path.name for path in plots.draw(results, tmp_path)] == ["writing.png", "writing.pdf"]


def test_programs_are_drawn_against_the_one_for_the_cpu() -> None:
    peers = [
        measured("CPU, 2 threads", 2.0),
        measured("CUDA", 6.0),
        measured("CPU device, 1 cores", 1.0),
    ]
    both = bench.Line(
        {"words": 5}, measured(value=8.0), measured("CPU device, 2 cores", 1.5), None, peers
    )
    old = bench.Line(
        {"words": 6},
        measured(value=8.0),
        measured("CPU device, 2 cores", 2.0),
        None,
        [measured("rg", 1.0)],
    )
    table = _results.Table("grep", "Words", "words", [both, old])
    assert dict(plots._programs(table)) == {
        "grep: 5": {"gpufs": 4.0, "CPU device": 0.75, "CUDA": 3.0},
        "grep: 6": {"gpufs": 4.0, "rg": 0.5},
    }


def test_lines_without_a_program_for_the_cpu_are_drawn_against_that_of_the_same_sizes() -> None:
    first = bench.Line(
        {"rows": 5, "run": "first"},
        measured(value=8.0),
        None,
        None,
        [measured("CPU, 2 threads", 2.0)],
    )
    other = bench.Line(
        {"rows": 6, "run": "first"},
        measured(value=8.0),
        None,
        None,
        [measured("CPU, 2 threads", 4.0)],
    )
    again = bench.Line(
        {"rows": 5, "run": "again"}, measured(value=12.0), measured("CUDA", 3.0), None, []
    )
    alone = bench.Line({"rows": 7, "run": "again"}, measured(value=12.0), None, None, [])
    table = _results.Table("matvec", "Products", "rows", [first, other, again, alone])
    assert dict(plots._programs(table)) == {
        "matvec: 5, first": {"gpufs": 4.0},
        "matvec: 6, first": {"gpufs": 2.0},
        "matvec: 5, again": {"gpufs": 6.0, "CUDA": 1.5},
    }


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_plots_are_drawn_of_results_in_a_file(
    run: Command, tmp_path: Path, bench_file: Path
) -> None:
    results = tmp_path / "results.json"
    assert run(*SMALL, "random", "--file", bench_file, "--json", results).returncode == 0
    done = run("bench", "plot", results, "--plot", tmp_path / "plots")
    assert done.returncode == 0
    assert done.stdout.decode().split() == [
        str(tmp_path / "plots" / f"random.{suffix}") for suffix in ("png", "pdf")
    ]
    for wrong in (["plot", results], ["plot", "--plot", tmp_path]):
        assert run("bench", *wrong).returncode == 2
    assert run("bench", "plot", tmp_path / "nothing", "--plot", tmp_path).returncode == 2
    done = run(*SMALL, "random", "--plot", results / "plots")  # known before anything is measured
    assert (done.stdout, done.returncode) == (b"", 2)
    assert b"results.json/plots: Not a directory" in done.stderr
