"""`gpufs bench` shows each row when it is measured, and keeps all complete rows of a cut run."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpufs import bench

from .conftest import TIMEOUT_S, command_line

NEEDS_MATPLOTLIB = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)

# A benchmark of three rows. The last one never ends: the main thread sleeps in Python, or stays in
# a C function that does not look for signals, as in a long kernel.
PROGRAM = """
import hashlib, sys, time
from gpufs.bench import BENCHMARKS, Benchmark, _measure
from gpufs.cli import main

def source(endless):
    if endless == "python":
        time.sleep(3600)
    elif endless == "c":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    while True:
        yield _measure.Sample(1.0, 0.0, 1, 10**9, 0)

def make(world, shared):
    for page in (512, 1024, 2048):
        endless = sys.argv[1] if page == 2048 else ""
        task = _measure.Task("gpufs", "GB/s", lambda endless=endless: source(endless))
        yield _measure.Case({"page": page}, task)

BENCHMARKS["steps"] = Benchmark("steps", "Three steps", "page", make)
sys.exit(main(["bench", "--device", "cpu", "--size", "4MiB", "steps", *sys.argv[2:]]))
"""


@contextlib.contextmanager
def stuck(
    tmp_path: Path, file: Path, where: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has shown two rows, and measures the third one."""
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, where, "--file", str(file), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ) | {"TMPDIR": str(tmp_path / "tmp")},
        cwd=tmp_path,
    ) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().lstrip().startswith(b"1 KiB"):
                assert process.poll() is None
            time.sleep(0.3)  # it begins to measure the third row
            yield process
        finally:
            process.kill()


def test_rows_appear_as_they_are_measured(tmp_path: Path, bench_file: Path) -> None:
    with stuck(tmp_path, bench_file, "python") as process:
        assert process.poll() is None  # the third row is not measured, so the table is not complete


@pytest.mark.parametrize("where", ["python", "c"])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupted_run_keeps_its_complete_rows(
    tmp_path: Path, bench_file: Path, where: str, number: signal.Signals, status: int
) -> None:
    with stuck(tmp_path, bench_file, where, "--json", "out.json") as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert errors == b"gpufs: ended early, after 2 complete rows; kept in out.json\n"
    assert process.returncode == status
    (table,) = bench.read(tmp_path / "out.json").benchmarks
    assert [line.parameters for line in table.lines] == [{"page": 512}, {"page": 1024}]
    assert table.wall_s == 0  # that of all rows is not known
    assert list((tmp_path / "tmp").iterdir()) == []


@NEEDS_MATPLOTLIB
@pytest.mark.parametrize("where", ["python", "c"])
def test_an_interrupted_run_draws_its_complete_rows(
    tmp_path: Path, bench_file: Path, where: str
) -> None:
    with stuck(tmp_path, bench_file, where, "--json", "out.json", "--plot", "plots") as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert errors == b"gpufs: ended early, after 2 complete rows; kept in out.json and plots\n"
    assert process.returncode == 130
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "steps.pdf",
        "steps.png",
    ]


def test_a_pipe_gets_the_results_of_an_interrupted_run(tmp_path: Path, bench_file: Path) -> None:
    with stuck(tmp_path, bench_file, "python", "--json", "/dev/stderr") as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert errors.startswith(b"{")
    assert errors.endswith(b"}\ngpufs: ended early, after 2 complete rows; kept in /dev/stderr\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--json", "out.json"),
            b"gpufs: ended before the first row was complete: nothing is kept\n",
        ),
        ((), b""),
    ],
)
def test_an_interrupt_before_the_first_row_keeps_older_results(
    tmp_path: Path, options: tuple[str, ...], said: bytes
) -> None:
    (tmp_path / "out.json").write_text("older")
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        command_line("bench", "--device", "cpu", "--size", "16MiB", "random", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ) | {"TMPDIR": str(tmp_path / "tmp")},
        cwd=tmp_path,
    ) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.glob("tmp/gpufs-bench-*/file")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)  # it waits until the file is older
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (errors, process.returncode) == (said, 130)
    assert (tmp_path / "out.json").read_text() == "older"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_was_measured_is_kept_when_the_process_is_killed(
    tmp_path: Path, bench_file: Path
) -> None:
    with stuck(tmp_path, bench_file, "python", "--json", "out.json") as process:
        process.kill()
        process.wait(TIMEOUT_S)
    (table,) = bench.read(tmp_path / "out.json").benchmarks
    assert len(table.lines) == 2
