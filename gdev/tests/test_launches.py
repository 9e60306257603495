"""``gdev bench launches``: launches through gdev and past it, on the simulated GPU."""

from __future__ import annotations

import json
from pathlib import Path

from .gdev_daemon import Daemon
from .simulated_gpu import BUILD, Gpu
from .test_bench import rows_of

PROGRAM = BUILD / "programs" / "bench" / "launches"
FEW = ("--count", "100", "--blocks", "4")


def test_it_finds_a_way_past_gdev(gpu: Gpu) -> None:
    said = json.loads(gpu.run(PROGRAM, *FEW).stdout)
    assert len(said["past_us"]) == len(said["gdev_us"]) == 4
    assert all(one > 0 for way in said.values() for one in way)


def test_without_gdev_there_is_nothing_to_compare(gpu: Gpu) -> None:
    done = gpu.run(PROGRAM, *FEW, under_gdev=False)
    said = "launches: it does not run under gdev (gdev bench launches)\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_the_command_prints_the_change(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    options = (*FEW, "--runs", "2", "--json", str(file))
    programs = {"GDEV_BENCH_PROGRAMS": str(PROGRAM.parent)}
    done = daemon.gdev("bench", "launches", *options, env=programs)
    assert done.returncode == 0, done.stderr
    row = rows_of(done.stdout.rstrip())[-1].split()
    assert row[0] == "2" and row[2] == row[4] == "us" and row[6] == "%"
    assert len(json.loads(file.read_text())["runs"]) == 2
