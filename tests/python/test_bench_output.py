"""What `gpufs bench` prints and keeps, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from .bench_runs import SMALL
from .conftest import Command, command_line
from .test_command_line import on_terminal


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


def test_progress_is_for_terminals_only(bench_file: Path) -> None:
    arguments = command_line(*SMALL, "random", "--file", bench_file)
    status, output, shown = on_terminal(arguments)
    assert (status, b"data" in output) == (0, True)
    assert b"random: raw pulls" in shown
    assert b"\x1b[?25h" in shown  # the cursor is back
    status, _, shown = on_terminal([*arguments, b"--no-progress"])
    assert (status, shown) == (0, b"")
