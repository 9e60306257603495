"""How long `gpufs bench` takes: what it says beforehand, and that it ends in time."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpufs import bench
from gpufs.bench import _durations, _measure

from .bench_runs import SMALL, measured, results_of
from .conftest import Command

KINDS = ("cuda", "cuda quick", "cpu", "cpu quick")
MINUTES = "10 minutes"  # as the help says


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_of_each_benchmark_is_known(kind: str) -> None:
    entries = _durations.known()[kind]
    assert set(entries) == set(bench.BENCHMARKS)
    for entry in entries.values():
        assert set(entry) == {"seconds", "file_bytes", "machine"}
        assert entry["seconds"] > 0
        assert entry["machine"]


def test_without_names_a_gpu_is_measured_within_ten_minutes(run: Command) -> None:
    seconds = [
        bench.expected_s(name, "cuda", False, bench.TOUR_BYTES) for name in bench.GROUPS[bench.TOUR]
    ]
    assert sum(seconds) < 0.9 * bench.TOUR_S
    assert bench.TOUR_S == 600
    assert MINUTES in " ".join(run("bench", "--help").stdout.decode().split())


def test_the_list_says_what_each_measures_and_how_long_it_takes(run: Command) -> None:
    done = run("bench", "--list")
    assert (done.stderr, done.returncode) == (b"", 0)
    text = done.stdout.decode()
    rows = re.findall(r"^(\w+) +(\d+ (?:s|min))  (.+)$", text, re.MULTILINE)
    assert [name for name, _, _ in rows] == [*bench.BENCHMARKS, *bench.GROUPS]
    assert max(map(len, text.splitlines())) <= 100
    for name, duration, words in rows:
        if name in bench.BENCHMARKS:
            assert duration == _durations.in_words(bench.expected_s(name, "cuda", False))
            assert words == bench.BENCHMARKS[name].title


def test_a_larger_file_is_expected_to_take_longer() -> None:
    known = _durations.known()["cuda"]["random"]
    expected = [
        bench.expected_s("random", "cuda", False, size)
        for size in (None, 1 << 20, known["file_bytes"], 4 * known["file_bytes"])
    ]
    assert expected == [known["seconds"]] * 3 + [4 * known["seconds"]]
    assert bench.expected_s("no such", "cuda", False) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (25.4, "25 s"), (89.4, "89 s"), (95, "2 min")]
)
def test_durations_are_shown_in_words(seconds: float, text: str) -> None:
    assert _durations.in_words(seconds) == text


def test_the_time_is_said_beforehand(run: Command, bench_file: Path) -> None:
    done = run(*SMALL, "random", "hits", "--file", bench_file)
    seconds = sum(bench.expected_s(name, "cpu", True, 4 << 20) for name in ("random", "hits"))
    assert done.stdout.decode().splitlines()[1] == (
        f"2 benchmarks, about {_durations.in_words(seconds)}"
    )


def test_new_times_replace_older_ones() -> None:
    results = results_of(bench.Line({"page": 512}, measured(), None, None), quick=False)
    results.machine["host"] = {"processor": "a processor", "cpus": 2}
    results.benchmarks[0].wall_s = 12.34
    results.benchmarks.append(bench.Table("hits", "cut off", "page", results.benchmarks[0].lines))
    known = _durations.known()
    made = _durations.with_results(known, results)
    entry = {"seconds": 12.3, "file_bytes": 4096, "machine": "a processor, 2 cores"}
    assert made["cpu"] == known["cpu"] | {"random": entry}
    assert made | {"cpu": known["cpu"]} == known
    assert _durations.FILE.read_text() == _durations.to_json(known)


def test_what_does_not_fit_is_left_out_and_named(
    run: Command, tmp_path: Path, bench_file: Path
) -> None:
    out = tmp_path / "out.json"
    options = ("--file", bench_file, "--minutes", "0", "--json", out)
    done = run(*SMALL, "random", "hits", *options)
    assert (done.stderr, done.returncode) == (b"", 0)
    text = done.stdout.decode()
    assert "ends within 1 s, and leaves out what does not fit" in text
    assert "out of time; not, or not completely, measured: random, hits\n" in text
    results = bench.read(out)
    assert (results.benchmarks, results.left_out) == ([], ["random", "hits"])


def slow_task() -> _measure.Task:
    def source() -> Iterator[_measure.Sample]:
        while True:
            time.sleep(0.05)
            yield _measure.Sample(0.05, 0.0, 1, 10**9, 0)

    return _measure.Task("gpufs", "GB/s", source)


def slow_rows(*_: object) -> Iterator[_measure.Case]:
    return (_measure.Case({"number": number}, slow_task()) for number in range(100))


def a_slow_row(*_: object) -> Iterator[_measure.Case]:
    yield _measure.Case({}, slow_task(), None, None, [slow_task() for _ in range(100)])


@pytest.mark.parametrize(("make", "least"), [(slow_rows, 1), (a_slow_row, 0)])
def test_a_slow_benchmark_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, bench_file: Path, make: Any, least: int
) -> None:
    slow = dataclasses.replace(bench.BENCHMARKS["random"], name="slow", make=make)
    monkeypatch.setitem(bench.BENCHMARKS, "slow", slow)
    monkeypatch.setenv("GPUFS_COMMIT", "a commit")  # without git, which takes time
    with bench.World.make(
        "cpu", file=os.fspath(bench_file), size=4 << 20, quick=True, tree=[], tell=print
    ) as world:
        begin = time.monotonic()
        results = bench.run(["slow", "slow"], world, deadline=begin + 1.0)
        took = time.monotonic() - begin
    # The first one is cut at a row or in the middle of it; nothing is measured after that.
    assert least <= len(results.benchmarks[0].lines) < 100
    assert results.benchmarks[0].wall_s == 0
    assert results.left_out == ["slow", "slow"]
    assert took < 2.0


def test_a_default_size_has_a_limit_and_a_given_size_has_none() -> None:
    def size(given: int | None, most: int | None) -> int:
        world = bench.World.make(
            "cpu", file=None, size=given, quick=True, tree=[], tell=print, default_max=most
        )
        world.__exit__(None, None, None)
        return world.file_bytes

    assert size(None, None) > 1 << 20
    assert size(None, 1 << 20) == 1 << 20
    assert size(8 << 20, 1 << 20) == 8 << 20
