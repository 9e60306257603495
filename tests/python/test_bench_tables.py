"""Tables of `gpufs bench`: they fit, and they say all that was measured."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpufs import bench
from gpufs.bench import _measure, _report, _sources

from .bench_runs import measured, results_of

COLUMNS = 120
STORED = [
    path
    for path in sorted(
        (Path(__file__).resolve().parents[2] / "benchmarks/results").glob("*/*.json")
    )
    if "benchmarks" in json.loads(path.read_text())
]


def too_wide(text: str, columns: int = COLUMNS) -> list[str]:
    return [line for line in text.splitlines() if len(line) > columns]


@pytest.mark.parametrize("path", STORED, ids=lambda path: "/".join(path.parts[-2:]))
def test_stored_results_fit_and_are_shown_in_full(path: Path) -> None:
    results = bench.read(path)
    for table in results.benchmarks:
        text = bench.show(table)
        assert too_wide(text) == []
        in_words = " ".join(text.split())
        for line in table.lines:
            for one in (line.ours, *line.peers):
                if one is not None and one.value is not None:
                    assert _report.amount(one) in in_words
            if line.limit is not None and line.limit.value is not None:
                assert _report.number(line.limit.value) in in_words
                assert line.limit.name in in_words
    assert too_wide(bench.compare(results, results)) == []


@pytest.fixture(scope="module")
def gpu_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bench.World]:
    """What a large machine with a GPU would measure: nothing of it runs."""
    folder = tmp_path_factory.mktemp("tree")
    (folder / "text").write_text("some words\n")
    made = bench.World.make(
        "cpu", file=None, size=8 << 30, quick=False, tree=[str(folder)], tell=print
    )
    yield dataclasses.replace(made, device="cuda")
    made._remove_folder()


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_each_table_fits_whatever_is_measured(name: str, gpu_world: bench.World) -> None:
    def result(task: _measure.Task | None) -> bench.Measurement | None:
        if task is None:
            return None
        more = {"operations": 10**8, "bytes": 10**10, "cpu_seconds": [16.0, 16.0]}
        return measured(task.name, 12345.6, unit=task.unit, **more)

    made = bench.BENCHMARKS[name]
    cases = list(made.make(gpu_world, _sources.Shared()))
    assert cases
    lines = [
        bench.Line(
            case.parameters,
            result(case.ours),
            result(case.limit),
            case.target,
            [one for one in map(result, case.peers) if one is not None],
        )
        for case in cases
    ]
    table = bench.Table(name, made.title, made.axis, lines)
    assert too_wide(bench.show(table)) == []


def test_planned_rows_look_as_measured_ones() -> None:
    lines = [
        bench.Line({"page": page}, measured(value=value), measured("raw", 2.0), 0.9)
        for page, value in ((512, 1.0), (1 << 20, 12345.0))
    ]
    task = _measure.Task("raw", "GB/s", lambda: iter(()))  # type: ignore[arg-type, return-value]
    planned = [
        _measure.Case(line.parameters, dataclasses.replace(task, name="gpufs"), task, 0.9)
        for line in lines
    ]
    table = results_of(*lines).benchmarks[0]
    rows = bench.Rows(table, planned)
    assert rows.head() + "".join(map(rows.row, lines)) + rows.foot(lines) == bench.show(table)


def test_a_narrow_terminal_lacks_the_least_important_columns() -> None:
    table = results_of(
        bench.Line({"page": 512}, measured(bytes=10**9, operations=5), measured("raw"), 0.9)
    ).benchmarks[0]

    def titles(width: int | None) -> list[str]:
        return re.split(" {2,}", bench.show(table, width=width).splitlines()[2].strip())

    everything = [
        *("page", "gpufs", "M ops/s", "limit", "ratio", "wanted", "cores", "CPU s/GB", "data")
    ]
    assert titles(None) == everything
    for width in (80, 60, 48):
        assert too_wide(bench.show(table, width=width).split("\n", 1)[1], width) == []
    assert titles(55) == ["page", "gpufs", "limit", "ratio", "wanted", "data"]


def test_a_peer_is_shown_once_for_each_of_its_values() -> None:
    lines = [
        bench.Line({"page": page}, measured(), None, None, [measured("rg", value)])
        for page, value in ((512, 1.0), (1024, 1.0), (2048, 2.0))
    ]
    text = bench.show(results_of(*lines).benchmarks[0])
    assert re.findall("beside it: (.*)", text) == ["rg 1.00 GB/s", "rg 2.00 GB/s"]


def test_many_peers_take_several_lines() -> None:
    peers = [measured(f"peer {number}, {'x' * 30}", number) for number in range(1, 8)]
    text = bench.show(results_of(bench.Line({}, measured(), None, None, peers)).benchmarks[0])
    assert too_wide(text) == []
    for peer in peers:
        assert _report.amount(peer, named=True) in text


def test_colors_are_for_terminals_only() -> None:
    wrong = measured(wrong_bytes=8)
    table = results_of(bench.Line({"page": 512}, wrong, measured("raw", 2.0), 0.9)).benchmarks[0]
    plain, colored = bench.show(table), bench.show(table, colored=True)
    assert "\x1b" not in plain
    assert "8 B wrong" in plain
    assert re.sub("\x1b\\[[0-9;]*m", "", colored) == plain != colored


def test_what_is_absent_is_named_with_its_reason_and_brackets_survive() -> None:
    absent = bench.Measurement("np.memmap[rows] + copy", "GB/s", None, "no numpy here")
    there = measured("list[rows]", 3.0)
    table = results_of(
        bench.Line({"page": 512}, measured(bytes=1), measured("raw"), None, [absent, there])
    ).benchmarks[0]
    text = bench.show(table)
    assert "np.memmap[rows] + copy: not measured: no numpy here" in text
    assert "list[rows] 3.00 GB/s" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.34"), (123.4, "123.4"), (12345.6, "12,346")],
)
def test_numbers_have_the_digits_that_tell_something(value: float, text: str) -> None:
    assert _report.number(value) == text
