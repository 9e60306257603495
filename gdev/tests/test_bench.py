"""``gdev bench``: what it makes of what programs print. The programs are small fakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .gdev_daemon import Daemon

HEAD = f"""#!{sys.executable}
import json, os, signal, sys
from pathlib import Path
vgpu = os.environ.get("GDEV_VGPU", "")
option = dict(zip(sys.argv[-2::-2], sys.argv[-1::-2]))
with open(Path(__file__).with_suffix(".log"), "a") as log:
    print(vgpu or "alone", *sys.argv[1:], file=log)
"""
MICRO = """
run = Path(__file__).with_suffix(".log").read_text().count("alone")
print(json.dumps({"ready": True}), flush=True)
seconds = []
for line in sys.stdin:
    # Each third repeat is disturbed, which no median shows.
    seconds.append(9.0 if len(seconds) % 3 == 2 else 0.03 if vgpu else 0.01 * run)
    print(json.dumps({"seconds": seconds[-1]}), flush=True)
print(json.dumps({"program": sys.argv[1], "size": 7, "bytes": 9, "right": True,
                  "seconds": seconds}))
"""
MICRO_WITH_FAULTS = """
if sys.argv[1] == "CPY":
    print("hello")
    print("micro: cudaMalloc: out of memory", file=sys.stderr)
    sys.exit(2)
wrong = sys.argv[1] == "MADD" and vgpu != ""
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": 0.002}), flush=True)
    if sys.argv[1] == "BP":
        sys.exit(0)
print(json.dumps({"program": sys.argv[1], "right": not wrong, "seconds": [0.002]}))
sys.exit(1 if wrong else 0)
"""
STAMP = """
    with open(os.environ["STAMPS"], "a") as stamps:
        print("gdev" if vgpu else "alone", file=stamps)
"""
COPIES = """
def line(test, direction, seconds, **more):
    print(json.dumps({"test": test, "direction": direction, "memory": "pinned", "bytes": 1 << 20,
                      "seconds": seconds * (2 if vgpu else 1), "right": True, **more}))
for direction, best in (("to_device", 65536), ("to_host", 262144)):
    for chunk in (16384, 65536, 262144):
        line("chunk", direction, 0.001 if chunk == best else 0.002, chunk=chunk)
    line("small", direction, 0.000004)
    for size in (16, 1024, 4096, 16384):
        line("small", direction, 0.000004, bytes=size)
        time = 0.000003 if size <= (4096 if direction == "to_device" else 16) else 0.000005
        line("small", direction, time, bytes=size, memory="kernel")
    line("size", direction, 0.0001048576)
"""
SEARCH = """
seed = int(option["--seed"])
print(json.dumps({"program": "search", "filled": 1}), flush=True)
if option["--repeats"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pause()
wrong = 3 if seed == int(os.environ.get("WRONG_SEED", "-1")) else 0
print(json.dumps({"program": "search", "wrong": wrong, "start": 1000 + seed,
                  "end": 1010 + 2 * seed}))
sys.exit(1 if wrong else 0)
"""


@dataclass
class Bench:
    """``gdev bench`` with programs of the test."""

    daemon: Daemon
    folder: Path

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(HEAD + text)
        path.chmod(0o755)

    def __call__(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        chosen = {"GDEV_BENCH_PROGRAMS": str(self.folder)} | dict(env or {})
        return self.daemon.gdev("bench", *arguments, env=chosen)

    def log(self, name: str) -> list[str]:
        """Returns how the program was run, in order: virtual GPU or ``alone``, and arguments."""
        return (self.folder / name).with_suffix(".log").read_text().splitlines()


@pytest.fixture
def bench(daemon: Daemon, tmp_path: Path) -> Bench:
    made = Bench(daemon, tmp_path / "bench programs")
    made.folder.mkdir()
    return made


def rows_of(output: str) -> list[str]:
    """Returns the lines that were printed, with one space between words."""
    return [" ".join(line.split()) for line in output.splitlines()]


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def test_micro_prints_medians_and_the_papers_figure(bench: Bench) -> None:
    bench.program("micro", MICRO)
    process = bench("micro", "loop", "PINCPY", "--runs", "3", "--repeats", "4")
    assert (process.returncode, process.stderr) == (0, "")
    rows = rows_of(process.stdout)
    # Runs of 10, 20 and 30 ms alone: three times, 1.5 times and as long.
    assert rows[-4].startswith("LOOP 20.00 ms 30.00 ms +65.1 % [+0.0, +200.0] ")
    assert rows[-4].endswith("] about 20 % slower")
    assert rows[-3].startswith("PINCPY 50.00 ms 30.00 ms -39.")
    assert rows[-3].endswith("] little difference")
    # The root of 1.65 times 0.61, between the two.
    of_all, mean = rows[-1].split(": ")
    assert of_all == "The repeats of these 2 programs of the paper, geometric mean"
    assert abs(float(mean.split()[0])) < 2 and mean.endswith(", +65.1].")
    pair = ["alone LOOP --repeat 0", "default LOOP --repeat 0"]
    assert bench.log("micro")[:6] == pair + pair[::-1] + pair


def test_micro_repeats_both_kinds_in_turn(bench: Bench, tmp_path: Path) -> None:
    bench.program("micro", MICRO.replace("seconds.append(", STAMP + "    seconds.append("))
    stamps = tmp_path / "stamps"
    process = bench("micro", "HS", "--runs", "1", "--repeats", "4", env={"STAMPS": str(stamps)})
    assert process.returncode == 0, process.stderr
    order = stamps.read_text().split()
    block = ["alone", "gdev", "gdev", "alone", "gdev", "alone", "alone", "gdev"]
    assert order[:8] == block
    # Repeats of 10 ms are measured for 0.3 s, not only four blocks.
    assert len(order) == 4 * 15


def test_micro_runs_all_programs_in_the_virtual_gpu(bench: Bench) -> None:
    bench.program("micro", MICRO)
    bench.daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    process = bench("micro", "--runs", "1", "--vgpu", "a")
    assert process.returncode == 0, process.stderr
    runs = [line.split()[:2] for line in bench.log("micro")]
    names = "LOOP MADD MMUL CPY PINCPY BP BFS HW HS LUD NN NW SRAD SRAD2"
    names += " MALLOC1 MALLOC16 MALLOC256 LAUNCH"
    assert runs == [[kind, name] for name in names.split(" ") for kind in ("alone", "a")]


def test_faults_are_named_and_the_rest_is_measured(bench: Bench, tmp_path: Path) -> None:
    bench.program("micro", MICRO_WITH_FAULTS)
    file = tmp_path / "numbers.json"
    names = ("MADD", "CPY", "BP", "NW")
    process = bench("micro", *names, "--runs", "2", "--json", str(file))
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        "gdev: MADD: gdev: wrong result",
        "gdev: CPY: alone: micro: cudaMalloc: out of memory",
        "gdev: BP: alone: no result, exit status 0",
    ]
    rows = rows_of(process.stdout)
    assert rows[-4:-1] == [
        "MADD failed failed - - -",
        "CPY failed failed - - -",
        "BP failed failed - - slower",
    ]
    assert rows[-1].startswith("NW 2.00 ms 2.00 ms +0.0 % [+0.0, +0.0] ")
    assert [one["program"] for one in read(file)["summary"]] == ["NW"]


def test_the_file_has_all_numbers_and_the_machine(bench: Bench, tmp_path: Path) -> None:
    bench.program("micro", MICRO)
    query = tmp_path / "nvidia-smi"
    query.write_text("#!/bin/sh\necho 'NVIDIA Test, 1024, 580.1'\n")
    query.chmod(0o755)
    file = tmp_path / "numbers.json"
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    process = bench("micro", "HS", "--runs", "2", "--json", str(file), env=path)
    assert process.returncode == 0, process.stderr
    found = read(file)
    assert found["benchmark"] == "micro"
    assert found["settings"] == {"runs": 2, "repeats": 5, "vgpu": "default"}
    gpu = {"name": "NVIDIA Test", "memory_bytes": 1 << 30, "driver": "580.1"}
    assert found["machine"]["gpus"] == [gpu] and found["machine"]["processor"]
    assert found["date"].startswith("20")
    (row,) = found["summary"]
    assert (row["program"], row["alone"], row["gdev"]) == ("HS", 0.015, 0.03)
    assert round(row["ratio"], 3) == 2.121 and row["low"] < 2 < 2.9 < row["high"]
    # The whole process is more than its repeats, of which it only says that they were long.
    assert 0 < row["process_alone"] < 9 and row["process_low"] <= row["process_ratio"]
    assert [(one["kind"], one["run"]) for one in found["runs"]] == [
        ("alone", 0),
        ("gdev", 0),
        ("gdev", 1),
        ("alone", 1),
    ]
    assert found["runs"][0]["seconds"][:4] == [0.01, 0.01, 9.0, 0.01]


def test_copies_are_compared_by_size_and_chunk(bench: Bench, tmp_path: Path) -> None:
    bench.program("copies", COPIES)
    file = tmp_path / "numbers.json"
    process = bench("copies", "--most", "1MiB", "--runs", "2", "--json", str(file))
    assert (process.returncode, process.stderr) == (0, "")
    rows = rows_of(process.stdout)
    best = "Best chunk: 64 KiB to device (1 MiB), 256 KiB to host (1 MiB)."
    assert f"{best} The paper's: 4 MiB for both." in rows
    assert (
        "Direct accesses are faster than DMA (pinned): up to 4 KiB to device "
        "(the paper: up to 4 KiB), up to 16 B to host (the paper: up to 1 KiB)." in rows
    )
    twice = "+100.0 % [+100.0, +100.0]"
    assert f"256 KiB 1 MiB to host pinned 1.05 GB/s 0.52 GB/s {twice}" in rows
    assert f"1 MiB to host pinned 4.00 us 8.00 us {twice}" in rows
    assert f"1 MiB to device pinned 10.00 GB/s 5.00 GB/s {twice}" in rows
    runs = ["alone --most 1048576", "default --most 1048576"]
    assert bench.log("copies") == runs + runs[::-1]
    assert len(read(file)["summary"]) == 26 and len(read(file)["runs"]) == 104


def test_a_wrong_copy_is_a_fault(bench: Bench) -> None:
    bench.program("copies", COPIES.replace('"right": True', '"right": not vgpu'))
    process = bench("copies", "--runs", "1")
    assert (process.returncode, process.stderr) == (1, "gdev: copies: gdev: wrong result\n")


def test_searches_run_beside_the_large_one(bench: Bench, tmp_path: Path) -> None:
    bench.program("search", SEARCH)
    file = tmp_path / "numbers.json"
    arguments = ["--count", "1,3", "--vgpus", "1..2", "--memory", "64MiB", "--repeats", "5"]
    process = bench("search", *arguments, "--bytes", "1MiB", "--json", str(file))
    assert (process.returncode, process.stderr) == (0, "")
    # From the first begin, 1001, to the last end, 1012 or 1016.
    assert rows_of(process.stdout)[-6:] == [
        "no gdev 1 11.000 s 1 finishes",
        "no gdev 3 15.000 s 3 fails (NVIDIA)",
        "1 1 11.000 s 1 finishes",
        "1 3 15.000 s 3 finishes",
        "2 1 11.000 s 1 finishes",
        "2 3 15.000 s 3 finishes",
    ]
    log = bench.log("search")
    large = [line.split()[0] for line in log if "--bytes 1073741824 --repeats 0" in line]
    small = [line.split()[0] for line in log if "--bytes 1048576 --repeats 5" in line]
    assert large == ["alone", "alone", *["bench-v1"] * 2, *["bench-v2"] * 2]
    assert small == ["alone"] * 4 + ["bench-v1"] * 8
    assert len(read(file)["summary"]) == 6
    assert "bench-v" not in bench.daemon.must("vgpu", "list")


def test_virtual_gpus_share_the_memory(bench: Bench, tmp_path: Path) -> None:
    listing = tmp_path / "listing"
    list_virtual_gpus = f"""
import subprocess
if vgpu:
    with open({str(listing)!r}, "w") as file:
        subprocess.run([sys.executable, "-m", "gdev", "vgpu", "list"], stdout=file, check=True)
"""
    bench.program("search", list_virtual_gpus + SEARCH)
    arguments = ["--count", "1", "--vgpus", "3", "--memory", "48MiB", "--large", "0"]
    process = bench("search", *arguments)
    assert (process.returncode, process.stderr) == (0, "")
    rows = [row for row in rows_of(listing.read_text()) if row.startswith("bench")]
    assert [row.split(" ")[:3] for row in rows] == [[f"bench-v{i}", "16", "MiB"] for i in (1, 2, 3)]


def test_virtual_gpus_that_a_killed_benchmark_left_are_used(bench: Bench) -> None:
    bench.program("search", SEARCH)
    bench.daemon.must("vgpu", "add", "bench-v1", "--memory", "1MiB")
    process = bench("search", "--count", "1", "--vgpus", "1", "--memory", "48MiB")
    assert (process.returncode, process.stderr) == (0, "")


def test_a_wrong_search_is_a_fault(bench: Bench) -> None:
    bench.program("search", SEARCH)
    arguments = ["--count", "3", "--vgpus", "1", "--memory", "48MiB"]
    process = bench("search", *arguments, env={"WRONG_SEED": "2"})
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        f"gdev: search: 3 at once, {where}: number 2: wrong result"
        for where in ("no gdev", "1 virtual GPUs")
    ]
    large = bench("search", *arguments, env={"WRONG_SEED": "0"})
    assert large.returncode == 1 and "the large one: wrong result" in large.stderr


@pytest.mark.parametrize("name", ["micro", "copies", "dataflow", "search"])
def test_a_missing_program_is_one_line(bench: Bench, name: str) -> None:
    arguments = ["--memory", "1MiB"] if name == "search" else []
    process = bench(name, *arguments)
    assert process.returncode == 1
    assert process.stderr.startswith(f"gdev: {bench.folder / name}: a program of gdev bench is ")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["micro", "NOSUCH"], 2, "there is no such microprogram: NOSUCH"),
        (["micro", "--json", "/nosuch/file"], 1, "/nosuch/file: No such file or directory"),
        (["micro", "--vgpu", "nosuch"], 1, "nosuch: there is no such virtual GPU"),
        (["search", "--memory", "1MiB", "--count", "1,x"], 2, "not numbers from 1 on"),
        (["search", "--memory", "1MiB", "--vgpus", "0..4"], 2, "not numbers from 1 on"),
        (["search", "--memory", "1MiB", "--vgpus", "4..1"], 2, "not numbers from 1 on"),
        (["search", "--memory", "much"], 2, "not a size: 'much'"),
        (["search"], 2, "--memory is needed"),
    ],
)
def test_errors_are_one_line(bench: Bench, arguments: list[str], status: int, said: str) -> None:
    bench.program("micro", MICRO)
    bench.program("search", SEARCH)
    process = bench(*arguments, env={"PATH": "/nosuch"})
    assert (process.returncode, process.stdout) == (status, "")
    assert process.stderr.startswith("gdev: ") and process.stderr.count("\n") == 1
    assert said in process.stderr
