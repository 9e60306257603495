"""Results of `gpufs bench`: the JSON, values in their units, comparisons."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gpufs
import pytest
from gpufs import _core, bench
from gpufs.bench import _measure
from gpufs.cli._bench_output import replace_file

from .bench_runs import SMALL, measured, results_of
from .conftest import TIMEOUT_S, Command


def test_results_that_are_kept_outlive_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    replace_file(str(out), "first")
    refused = OSError(errno.ENOSPC, "No space left on device", "part")
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(refused))
    with pytest.raises(OSError, match="No space left on device") as error:
        replace_file(str(out), "second")
    assert error.value.filename == str(out)
    assert out.read_bytes() == b"first"
    # A file that cannot be replaced is written in its place.
    refused = OSError(errno.EBUSY, "Device or resource busy", "part")
    replace_file(str(out), "third")
    assert out.read_bytes() == b"third"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_json_may_go_to_what_is_no_file(run: Command, bench_file: Path) -> None:
    done = run(*SMALL, "random", "--file", bench_file, "--json", "/dev/stderr")
    assert done.returncode == 0
    assert json.loads(done.stderr)["benchmarks"][0]["name"] == "random"


def test_json_holds_what_was_measured_where(run: Command, tmp_path: Path, bench_file: Path) -> None:
    out = tmp_path / "out.json"
    done = run(*SMALL, "random", "hits", "--file", bench_file, "--json", out)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert b"this is the CPU device" in done.stdout
    content = json.loads(out.read_text())
    assert set(content) == {
        *(
            "schema",
            "version",
            "commit",
            "date",
            "device",
            "device_name",
            "quick",
            "file_bytes",
            "machine",
        ),
        *("benchmarks", "left_out"),
    }
    assert (content["schema"], content["version"], content["device"]) == (
        1,
        gpufs.__version__,
        "cpu",
    )
    assert (content["file_bytes"], content["quick"]) == (4 << 20, True)
    assert content["machine"]["host"]["cpus"] >= 1
    assert content["machine"]["built_with"] == _core.built_with
    assert [table["name"] for table in content["benchmarks"]] == ["random", "hits"]
    for table in content["benchmarks"]:
        runs = sum(sum(line["ours"]["seconds"]) for line in table["lines"])
        assert table["wall_s"] > runs  # with the warm-ups, the limits and the preparations
    random = content["benchmarks"][0]["lines"]
    assert [line["parameters"] for line in random] == [
        {"page": 512},
        {"page": 4096},
        {"page": 65536},
    ]
    for line in random:
        assert set(line) == {"parameters", "ours", "limit", "target", "peers"}
        for one in (line["ours"], line["limit"]):
            assert len(one["seconds"]) == len(one["cpu_seconds"]) == 3
            assert one["value"] > 0
            assert (one["bytes"], one["wrong_bytes"], one["unit"]) == (4 << 20, 0, "GB/s")
        assert line["ours"]["operations"] * line["parameters"]["page"] == 4 << 20
        # First touches: each page was loaded, directly but for the one that tells of the extent.
        assert line["ours"]["counters"]["direct_loads"] == line["ours"]["operations"] - 1
        assert line["limit"]["name"] == "raw pulls"
    assert bench.read(out).to_json() == out.read_text()


def test_the_commit_is_named_by_the_environment_or_else_by_git(tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(
        Path(gpufs.__file__).parent, package / "gpufs", ignore=shutil.ignore_patterns("__pycache__")
    )

    def commit(**environment: str) -> str:
        program = "from gpufs.bench import _results; print(_results._commit())"
        return subprocess.run(
            [sys.executable, "-c", program],
            env=dict(os.environ) | {"PYTHONPATH": os.fspath(package)} | environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            cwd=tmp_path,
        ).stdout.strip()

    def git(*arguments: str) -> str:
        identity = (
            "-c",
            "user.name=n",
            "-c",
            "user.email=e@example.org",
            "-c",
            "commit.gpgsign=false",
        )
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    assert commit(GPUFS_COMMIT="") == "unknown"
    assert commit(GPUFS_COMMIT="1234567") == "1234567"
    if shutil.which("git") is None:
        pytest.skip("no git here")
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "not ours")
    assert commit(GPUFS_COMMIT="1234567") == "1234567"
    git("add", "package/gpufs/bench")
    git("commit", "--quiet", "-m", "ours")
    assert commit(GPUFS_COMMIT="") == git("rev-parse", "--short=7", "HEAD")
    assert commit(GPUFS_COMMIT="1234567") == "1234567"


def test_compare_tells_changes_from_noise() -> None:
    def line(page: int, value: float, spread: float) -> bench.Line:
        one = measured(value=value, seconds=[1.0, 1.0 + spread])
        return bench.Line({"page": page}, one, measured("raw pulls", 10.0), 0.9)

    before = results_of(line(512, 5.0, 0.01), line(4096, 5.0, 0.2), line(8192, 5.0, 0.0))
    after = results_of(line(512, 6.0, 0.01), line(4096, 5.2, 0.2), line(65536, 5.0, 0.0))
    text = bench.compare(before, after)
    assert "+20.0%" in text
    assert "+4.0% (noise)" in text
    assert "8 KiB" not in text  # only in one of them
    assert "64 KiB" not in text
    assert "different machines" not in text
    assert "different machines" in bench.compare(
        before, results_of(line(512, 5.0, 0.0), device_name="other")
    )
    assert "no benchmark in common" in bench.compare(before, results_of())


def test_compare_reads_its_files(run: Command, tmp_path: Path) -> None:
    results = results_of(bench.Line({"page": 512}, measured(), measured("raw pulls", 2.0), 0.9))
    for name in ("a", "b"):
        (tmp_path / name).write_text(results.to_json())
    done = run("bench", "compare", tmp_path / "a", tmp_path / "b")
    assert (done.stderr, done.returncode) == (b"", 0)
    assert b"+0.0% (noise)" in done.stdout


def test_one_source_is_measured_once_for_tasks_in_several_units() -> None:
    def source() -> Iterator[_measure.Sample]:
        while True:
            yield _measure.Sample(0.5, 0.0, 10, 10**9, 0)

    rate, time_ = (_measure.Task("", unit, source) for unit in ("GB/s", "ms/GB"))
    assert _measure.measure(_measure.Task("", "TFLOP/s", source), 3).value == pytest.approx(20e-12)
    seen = _measure.measure(rate, 3)
    assert seen.value == 2.0
    other = _measure.restated(seen, _measure.Task("part", "ms/GB", source))
    assert (other.name, other.unit, other.value) == ("part", "ms/GB", pytest.approx(500))
    assert other.seconds == seen.seconds
    assert _measure.measure(time_, 3).value == pytest.approx(500)
    assert _measure.restated(bench.Measurement("", "GB/s", None, "why"), time_).absent == "why"


@pytest.mark.parametrize(("unit", "expected"), [("GB/s", 0.5), ("us", 2.0)])
def test_a_ratio_above_one_is_better_than_the_limit(unit: _measure.Unit, expected: float) -> None:
    ours, limit = (bench.Measurement("", unit, value) for value in (5.0, 10.0))
    assert _measure.ratio(ours, limit) == expected
    assert _measure.ratio(ours, bench.Measurement("", unit, None)) is None
