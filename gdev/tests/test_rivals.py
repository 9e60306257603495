"""``gdev bench rivals``: its program on the simulated GPU, and tables of fakes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .gdev_daemon import Daemon
from .simulated_gpu import BUILD, ROOT, TIMEOUT_S, Gpu
from .test_bench import Bench, read, rows_of

# As many bytes as the rows of nvshare and HAMi-core say; a program under HAMi-core hangs.
RIVALS = """
import time
preloaded = os.environ.get("LD_PRELOAD", "")
way = "hami" if "libvgpu" in preloaded else "gdev" if vgpu else "nothing"
if way == "hami" and "HANG" in os.environ:
    time.sleep(60)
said = {"launches": {"us": 2.5}, "calibrate": {"work": 7}, "bursts": {"finished": 5},
        "limit": {"free": 1 << 30, "total": 2 << 30, "got": 3 << 30, "error": 0}}[sys.argv[1]]
if way == "hami":
    if os.environ.get("CUDA_DEVICE_MEMORY_LIMIT") == str(8 << 20):
        said = {"free": 0, "total": 8 << 20, "got": 8 << 20, "error": 2}
print(json.dumps(said), flush=True)
if "--hold-ms" in sys.argv:
    time.sleep(60)
"""
# Two that do not fit a HAMi-core container together: the second one fails.
TRAINING = """
import json, os, sys
cache = os.environ.get("CUDA_DEVICE_MEMORY_SHARED_CACHE", "")
option = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "/c." in cache and option["--seed"] == "1":
    sys.exit("OutOfMemoryError: CUDA out of memory")
begin = float(option["--start"]) or 1000.0
print(json.dumps({"losses": ["0x1"] * 4, "begin": begin, "end": begin + 2, "reserved_mib": 1}))
"""


def test_the_program_runs_without_gdev(gpu: Gpu) -> None:
    program = BUILD / "programs" / "bench" / "rivals"
    sizes = ("--piece", str(4 << 20), "--most", str(128 << 20))
    for kind in ("alloc", "async", "chunk", "array", "managed"):
        done = gpu.run(program, "limit", kind, *sizes, under_gdev=False)
        said = json.loads(done.stdout)
        assert (said["got"], said["error"]) == (64 << 20, 2), kind
    work = json.loads(gpu.run(program, "calibrate", under_gdev=False).stdout)["work"]
    assert work > 0
    done = gpu.run(program, "bursts", "--ms", "300", "--work", "1000000", under_gdev=False)
    said = json.loads(done.stdout)
    assert 0 < said["finished"] <= 300 and said["longest_ms"] >= 1
    pairs = gpu.run(program, "pairs", "--count", "100", "--bytes", "4096", under_gdev=False)
    assert json.loads(pairs.stdout)["us"] > 0
    assert gpu.run(program, "bursts", "--ms", "1x", under_gdev=False).returncode == 2
    assert gpu.run(program, "nosuch", under_gdev=False).stderr.startswith("rivals: commands: ")


def test_bursts_end_at_the_same_time_whenever_they_begin(gpu: Gpu) -> None:
    program = BUILD / "programs" / "bench" / "rivals"
    done = gpu.run(program, "bursts", "--ms", "100", "--start-ms", "1000", under_gdev=False)
    assert json.loads(done.stdout)["finished"] == 0  # that time is long over


def test_gdev_is_measured_on_a_simulated_gpu(daemon: Daemon, tmp_path: Path) -> None:
    sizes = ("--limit", "16MiB", "--piece", "4MiB", "--launches", "200", "--seconds", "0.4")
    file = tmp_path / "numbers.json"
    process = daemon.gdev("bench", "rivals", *sizes, "--json", str(file))
    assert (process.returncode, process.stderr) == (0, "")
    rows = rows_of(process.stdout)
    assert "MEASURE NOTHING GDEV" in rows
    assert "limit 16 MiB: cudaMemGetInfo 0.06 GiB of 0.06 GiB 0.02 GiB of 0.02 GiB" in rows
    for name in ("cudaMalloc", "cudaMallocAsync", "cuMemCreate", "cudaMallocArray"):
        assert f"limit 16 MiB: {name} 0.02 GiB, not refused 0.02 GiB, error 2" in rows
    assert "limit 16 MiB: a neighbour gets 0.02 GiB of 0.02 GiB 0.02 GiB of 0.02 GiB" in rows
    found = read(file)
    limits = [one for one in found["runs"] if one.get("kind") == "gdev" and one.get("error")]
    assert [one["got"] for one in limits] == [16 << 20] * 5
    assert "training" not in process.stdout
    assert daemon.must("vgpu", "list").count("\n") == 1, "virtual GPUs are left"


@pytest.fixture
def rivals(daemon: Daemon, tmp_path: Path) -> Bench:
    made = Bench(daemon, tmp_path / "programs")
    made.folder.mkdir()
    made.program("rivals", RIVALS)
    (tmp_path / "training.py").write_text(TRAINING)
    # A library that the loader can preload.
    subprocess.run(
        ["cc", "-shared", "-o", tmp_path / "libvgpu.so", "-x", "c", "/dev/null"], check=True
    )
    return made


def test_a_rival_has_its_own_limit_and_its_refusals_are_results(
    rivals: Bench, tmp_path: Path
) -> None:
    options = ("--hami", str(tmp_path / "libvgpu.so"), "--limit", "8MiB", "--piece", "1MiB")
    training = ("--training", str(tmp_path / "training.py"), "--training-arguments", "")
    process = rivals("rivals", *options, *training, "--parts", "training,limit")
    assert (process.returncode, process.stderr) == (0, "")
    rows = rows_of(process.stdout)
    assert "MEASURE NOTHING GDEV HAMI CORE" in rows
    assert "training step, alone 500.00 ms 500.00 ms 500.00 ms" in rows
    assert (
        "limit 8 MiB: cudaMalloc 3.00 GiB, not refused 3.00 GiB, not refused 0.01 GiB, error 2"
        in rows
    )


def test_trainings_beyond_the_memory_are_compared(rivals: Bench, tmp_path: Path) -> None:
    options = ("--hami", str(tmp_path / "libvgpu.so"), "--parts", "together")
    training = ("--training", str(tmp_path / "training.py"), "--training-arguments", "")
    process = rivals("rivals", *options, *training)
    assert (process.returncode, process.stderr) == (0, "")
    rows = rows_of(process.stdout)
    assert "2 trainings that fit, x one by one - [1] - [2] - [3]" in rows
    assert "x one by one: not run: two trainings do not fit this GPU" in process.stdout
    assert "2 that need 1.3 x the memory - [4] 2.0 s, 0.50 x - [5]" in rows
    assert rows[-1].endswith("1 of 2 failed: OutOfMemoryError: CUDA out of memory")
    rivals.daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with rivals.daemon.program("a") as program:
        program.does("init")
        program.does("alloc", 2 << 20)
        listed = rows_of(rivals.daemon.must("gpu", "list"))[-1]
    assert "64 MiB 64 MiB" in listed, "the GPU is smaller afterwards"


def test_a_rival_that_hangs_costs_little(rivals: Bench, tmp_path: Path) -> None:
    options = ("--hami", str(tmp_path / "libvgpu.so"), "--timeout", "1", "--parts", "limit")
    process = rivals("rivals", *options, env={"HANG": "1"})
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.count("failed: killed: no end after 1 s") == 2
    assert process.stdout.count("not run: 2 programs before it hung") == 5


def test_a_failure_without_a_rival_is_a_fault(rivals: Bench) -> None:
    rivals.program("rivals", "sys.exit('rivals: cuInit: error 100')")
    process = rivals("rivals")
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        "gdev: nothing: empty launch: failed: rivals: cuInit: error 100",
        "gdev: gdev: empty launch: failed: rivals: cuInit: error 100",
        "gdev: nothing: limit: failed: rivals: cuInit: error 100",
        "gdev: nothing: bursts: failed: rivals: cuInit: error 100",
    ]


def test_what_is_missing_is_one_line(rivals: Bench, tmp_path: Path) -> None:
    for option in ("--hami", "--nvshare"):
        process = rivals("rivals", option, str(tmp_path / "nosuch"))
        assert process.returncode == 1 and process.stderr.count("\n") == 1
        assert "nosuch" in process.stderr
    process = rivals("rivals", "--parts", "launches,nosuch")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == (
        "gdev: there is no such part: nosuch (launches, training, limit, together, bursts)\n"
    )


def test_programs_end_with_the_command(rivals: Bench) -> None:
    rivals.program("rivals", "import time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    environment = rivals.daemon.environment() | {
        "GDEV_BENCH_PROGRAMS": str(rivals.folder),
        "PYTHONPATH": f"{ROOT / 'gdev' / 'python'}:{ROOT / 'python'}",
    }
    command = [sys.executable, "-m", "gdev", "bench", "rivals", "--parts", "launches"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        log = rivals.folder / "rivals.log"
        while not log.exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=TIMEOUT_S) == 128 + signal.SIGTERM
    left = subprocess.run(["pgrep", "-f", str(rivals.folder / "rivals")], capture_output=True)
    assert left.stdout == b""
