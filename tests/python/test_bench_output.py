"""What `gpufs bench` prints and keeps, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from gpufs import bench
from gpufs.bench import _report

from .bench_runs import SMALL, measured, results_of
from .conftest import TIMEOUT_S, Command, command_line
from .test_command_line import on_terminal


def test_what_was_measured_is_kept_when_the_run_is_cut_off(
    tmp_path: Path, bench_file: Path
) -> None:
    out = tmp_path / "out.json"
    running = subprocess.Popen(
        command_line(
            *SMALL,
            "random",
            "large",
            "staged",
            "hits",
            "gather",
            "--file",
            bench_file,
            "--json",
            out,
        ),
        stdout=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + TIMEOUT_S
        while not out.exists():
            assert running.poll() is None, "it ended before it wrote anything"
            assert time.monotonic() < end
            time.sleep(0.001)
    finally:
        running.kill()
        running.wait()
    kept = bench.read(out)
    assert kept.benchmarks[0].name == "random"
    assert kept.benchmarks[0].lines
    assert {table.name for table in kept.benchmarks} < {
        "random",
        "large",
        "staged",
        "hits",
        "gather",
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no-such-benchmark"], "no benchmark 'no-such-benchmark'"),
        (["random", "--size", "much"], "'much'"),
        (["random", "--file", "missing/file"], "missing"),
        (["random", "--json", "missing/out.json"], "missing/out.json: No such file or directory"),
        (["random", "--json", "/tmp"], "/tmp: Is a directory"),
        (["compare"], "compare needs two files"),
        (["compare", "missing", "missing"], "missing: No such file or directory"),
        (["compare", "OTHER", "OTHER"], "these are no results of gpufs bench"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    run: Command, tmp_path: Path, arguments: list[str], text: str
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"schema": 1}')
    done = run(
        "bench", "--device", "cpu", *(str(other) if word == "OTHER" else word for word in arguments)
    )
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gpufs: ")
    assert text in line
    assert done.returncode == 2


def test_an_interrupt_ends_it_with_130_and_removes_its_files(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    arguments = command_line("bench", "--device", "cpu", "--size", "16MiB")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.glob("gpufs-bench-*/file")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(4)  # behind the wait for the file's age
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (errors, process.returncode) == (b"", 130)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_for_terminals_only(bench_file: Path) -> None:
    arguments = command_line(*SMALL, "random", "--file", bench_file)
    status, output, shown = on_terminal(arguments)
    assert (status, b"data" in output) == (0, True)
    assert b"random: raw pulls" in shown
    assert b"\x1b[?25h" in shown  # the cursor is back
    status, _, shown = on_terminal([*arguments, b"--no-progress"])
    assert (status, shown) == (0, b"")


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
