"""Figures of `gpufs bench`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from gpufs import _plot_style, bench
from gpufs.bench import _measure, _plot_applications, _plot_lines, _results, plots

from .bench_runs import SMALL, measured
from .conftest import TIMEOUT_S, Command

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

NEEDS_MATPLOTLIB = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def results_with(*tables: bench.Table) -> bench.Results:
    return _results.Results("0", "none", "today", "cpu", "the CPU", True, 1, {}, list(tables))


def stored(*names: str) -> bench.Results:
    results, *others = (bench.read(RESULTS / name) for name in names)
    for other in others:
        results.benchmarks.extend(other.benchmarks)
    return results


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


@NEEDS_MATPLOTLIB
def test_plots_are_drawn_for_benchmarks_with_an_axis(
    run: Command, tmp_path: Path, bench_file: Path
) -> None:
    done = run(*SMALL, "random", "reopen", "--file", bench_file, "--plot", tmp_path / "plots")
    assert done.returncode == 0
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "random.pdf",
        "random.png",
    ]


@NEEDS_MATPLOTLIB
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


# --- A benchmark along its axis ---


def test_words_make_panels_and_numbers_make_lines() -> None:
    cases = [
        ("map", 512, 512),
        ("map", 4096, 4096),
        ("read_by_warp", 4096, 1024),
        ("read_by_warp", 4096, 4096),
        ("read_by_warp", 65536, 1024),
        ("read_by_warp", 65536, 4096),
        ("read_by_block", 4096, 4096),  # a single point, which shows nothing
    ]
    lines = [
        bench.Line(
            {"access": access, "page": page, "chunk": chunk}, measured(), measured("raw, 2"), None
        )
        for access, page, chunk in cases
    ]
    panels = _plot_lines.panels_of(bench.Table("hits", "Hits", "chunk", lines))
    assert {title: list(series) for title, series in panels.items()} == {
        "gmmap": ["gpufs", "limit: raw"],
        "gread by warps": ["gpufs, pages of 4 KiB", "limit: raw", "gpufs, pages of 64 KiB"],
    }


def test_variants_of_gpufs_share_a_panel() -> None:
    lines = [
        bench.Line({"workers": workers, "variant": variant}, measured(), None, None)
        for workers in (1, 2)
        for variant in ("gpufs", "gpufs, advised")
    ]
    panels = _plot_lines.panels_of(bench.Table("contact", "Contact", "workers", lines))
    assert {title: list(series) for title, series in panels.items()} == {
        "": ["gpufs", "gpufs, blocks prefetch"]
    }


def test_rows_that_have_no_place_on_the_axis_are_left_out() -> None:
    def line(value: float, **parameters: _results.Value) -> bench.Line:
        return bench.Line(parameters, measured(value=value), None, None)

    lines = [
        line(3, what="cached"),
        line(1, what="file", workers=1),
        line(2, what="file", workers=8),
    ]
    panels = _plot_lines.panels_of(bench.Table("writing", "Writing", "workers", lines))
    assert {title: series["gpufs"].points for title, series in panels.items()} == {
        "file": [(1, 1), (8, 2)]
    }


def test_a_limit_that_gpufs_sets_itself_has_its_whole_name() -> None:
    lines = [
        bench.Line({"pages": pages}, measured(), measured("gpufs, all pages"), None)
        for pages in (1, 16)
    ]
    (series,) = _plot_lines.panels_of(bench.Table("hotspot", "t", "pages", lines)).values()
    assert list(series) == ["gpufs", "limit: gpufs, all pages"]


@NEEDS_MATPLOTLIB
@pytest.mark.parametrize(("largest", "least"), [(51.0, 4.0), (500.0, 10.0)])
def test_small_differences_look_small(largest: float, least: float) -> None:
    lines = [
        bench.Line({"page": page}, measured(value=value), None, None)
        for page, value in ((512, 50.0), (1024, largest))
    ]
    table = bench.Table("random", "Random", "page", lines)
    figure = _plot_lines.draw_lines(results_with(table), table)
    assert figure is not None
    low, high = figure.axes[0].get_ylim()
    assert low <= 50 < largest <= high
    assert high / low >= least * 0.999


@pytest.mark.parametrize("name", [n for n in bench.BENCHMARKS if n not in bench.GROUPS["apps"]])
def test_axes_and_units_have_words(name: str) -> None:
    assert bench.BENCHMARKS[name].axis in {*_plot_lines.AXES, "path", "load"}
    assert set(_plot_lines.UNITS) < set(_measure.Unit.__args__)  # type: ignore[attr-defined]


# --- The applications ---


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
    table = bench.Table("grep", "Words", "words", [both, old])
    assert {row.label: row.speedups for row in _plot_applications.rows_of(table)} == {
        "5 words": {"gpufs": 4.0, "CPU device": 0.75, "CUDA": 3.0},
        "6 words": {"gpufs": 4.0, "rg": 0.5},
    }


def test_runs_with_the_data_in_gpu_memory_share_the_row_of_the_first_run() -> None:
    first = bench.Line(
        {"rows": 5, "run": "first"},
        measured(value=8.0),
        None,
        None,
        [measured("CPU, 2 threads", 2.0), measured("torch, in memory", 20.0)],
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
    small = bench.Line({"rows": 5, "run": "small cache"}, measured(value=4.0), None, None, [])
    alone = bench.Line({"rows": 7, "run": "again"}, measured(value=12.0), None, None, [])
    table = bench.Table("matvec", "Products", "rows", [first, other, again, small, alone])
    assert {row.label: row.speedups for row in _plot_applications.rows_of(table)} == {
        "5 rows": {
            "gpufs": 4.0,
            "torch in memory": 10.0,
            "gpufs again": 6.0,
            "CUDA again": 1.5,
        },
        "6 rows": {"gpufs": 2.0},
        "5 rows, small cache": {"gpufs": 2.0},
    }


def test_labels_of_stored_results_are_words_with_units() -> None:
    results = stored(
        "0843ef2/search.json",
        *(f"12bc92c/{name}.json" for name in ("grep", "matmul", "collage", "matvec")),
    )
    labels = {
        table.name: [row.label for row in _plot_applications.rows_of(table)]
        for table in results.benchmarks
    }
    assert labels["grep"] == ["5,000 words", "58,000 words"]
    assert labels["search"][0] == "2,016 queries, 75,000 vectors, no match"
    assert labels["matvec"][0] == "float32, 4,096 columns"
    assert labels["matmul"][0] == "float32, 8,192 x 8,192 x 8,192"
    assert labels["collage"][1] == "192 blocks, pages of 1 KiB"
    for rows in labels.values():
        assert len(set(rows)) == len(rows) <= 12


@NEEDS_MATPLOTLIB
def test_each_application_has_a_panel_that_names_its_programs() -> None:
    results = stored("0843ef2/search.json", "12bc92c/grep.json", "12bc92c/collage.json")
    figure = _plot_applications.draw_applications(results, results.benchmarks)
    assert figure is not None
    titles = [axes.get_title(loc="left").split(":")[0] for axes in figure.axes]
    assert titles == ["search", "grep", "collage"]
    for axes, table in zip(figure.axes, results.benchmarks, strict=True):
        shown = {text.get_text(): text.get_color() for text in axes.texts}
        rows = _plot_applications.rows_of(table)
        assert set(shown) == {name for row in rows for name in row.speedups}
        assert all(color == _plot_style.color_of(name) for name, color in shown.items())


# --- The look ---


@NEEDS_MATPLOTLIB
def test_all_lines_are_named_beside_them_in_their_colors(tmp_path: Path) -> None:
    results = stored("0e5b841/bench.json")
    for table in results.benchmarks:
        figure = _plot_lines.draw_lines(results, table)
        panels = list(_plot_lines.panels_of(table).values())
        assert (figure is None) == (not panels)
        for axes, series in zip(figure.axes if figure else [], panels, strict=False):
            named = {text.get_text().split(" (at ")[0]: text.get_color() for text in axes.texts}
            assert named == {name: one.color for name, one in series.items()}
            assert axes.get_legend() is None
    written = plots.draw(results, tmp_path)
    assert {path.name for path in written} >= {"random.png", "contact.pdf", "hits.png"}


def test_a_program_has_the_same_color_in_all_plots() -> None:
    assert _plot_style.color_of("gpufs again") == _plot_style.color_of("gpufs") == _plot_style.OURS
    assert _plot_style.color_of("CPU device") != _plot_style.color_of("CPU, 16 threads")
    assert _plot_style.color_of("an unknown program") == _plot_style.OTHER
    assert _plot_style.short_name("twin, 16 cores") == "CPU device"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.1, 0.5], [0.1, 0.5]),
        ([0.5, 0.5], [0.4, 0.6]),
        ([0.6, 0.5], [0.65, 0.45]),
        ([0.0, 0.5, 0.5, 0.5], [0.0, 0.3, 0.5, 0.7]),
    ],
)
def test_names_are_moved_apart_and_no_further(wanted: list[float], expected: list[float]) -> None:
    assert _plot_style.spread_out(wanted, [0.2] * len(wanted)) == pytest.approx(expected)
