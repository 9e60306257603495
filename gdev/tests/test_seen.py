"""What happens is seen: gdev top, gdev metrics, gdev doctor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gpufs import _samples

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program
from .simulated_gpu import BUILD, TIMEOUT_S
from .test_swap import started

MIB = 1 << 20
COUNTS = [
    *("launches", "fills", "to_device", "to_host", "unknown_functions", "bypasses"),
    *("turns", "bytes_out", "bytes_in", "moving_ns", "waiting_ns", "refusals"),
]
INTERVAL = ("--interval", "0.1")


def top(daemon: Daemon) -> dict[str, Any]:
    found = json.loads(daemon.must("top", "--json", *INTERVAL))
    assert isinstance(found, dict)
    return found


def program_of(shown: dict[str, Any], program: Program) -> dict[str, Any]:
    (found,) = [one for one in shown["programs"] if one["process"] == program.process.pid]
    assert isinstance(found, dict)
    return found


def vgpu_of(shown: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in shown["vgpus"] if one["vgpu"] == name]
    assert isinstance(found, dict)
    return found


def check_sums(shown: dict[str, Any]) -> None:
    """While none has ended, the numbers of a virtual GPU are the sums of its programs'."""
    for vgpu in shown["vgpus"]:
        own = [one for one in shown["programs"] if one["vgpu"] == vgpu["vgpu"]]
        assert vgpu["programs"] == len(own)
        for key in ("used", "swapped", "wired", *(set(COUNTS) - {"waiting_ns"})):
            assert vgpu[key] == sum(one[key] for one in own), (vgpu["vgpu"], key)


def metrics_of(text: str) -> dict[tuple[str, ...], float]:
    """Returns the samples by name and labels; no two may have the same."""
    samples = _samples.parse(text)
    found = {(name, *sorted(labels.items())): value for name, labels, value in samples}
    assert len(found) == len(samples)
    return found


@contextmanager
def served(daemon: Daemon) -> Iterator[str]:
    """gdev metrics, at any port. Returns its URL."""
    # The tests may run where SIGINT is ignored, as a shell's jobs in the background do.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "gdev", "metrics"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        env=daemon.environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


def scrape(url: str) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return metrics_of(answer.read().decode())


# --- gdev top ---


def test_top_shows_programs_that_take_turns(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        first = top(two_vgpus)
        assert program_of(first, a)["state"] == "off" and program_of(first, b)["state"] == "on"
        assert program_of(first, a)["swapped"] == 40 * MIB
        assert program_of(first, a)["bytes_out"] == 40 * MIB
        assert vgpu_of(first, "a")["limit"] == 64 * MIB
        check_sums(first)
        for _ in range(3):
            assert a.does("check", 0, 1, 40 * MIB) == [1]
            assert b.does("check", 0, 2, 40 * MIB) == [1]
        then = program_of(top(two_vgpus), a)
        assert then["turns"] == 3 and then["bytes_in"] == 120 * MIB
        assert then["waiting_ns"] > 0 and then["moving_ns"] > 0
        assert then["used"] == 40 * MIB and then["wired"] == 0
        (gpu,) = first["gpus"]
        assert gpu["memory"] == gpu["for_programs"] == 64 * MIB and gpu["given"] <= 64 * MIB
        assert then["gpu"] == gpu["gpu"]
        check_sums(top(two_vgpus))


def test_top_as_text(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a:
        text = two_vgpus.must("top", "--once", *INTERVAL)
        blocks = [block.splitlines() for block in text.split("\n\n")[1:]]
        assert [block[0].split()[0] for block in blocks] == ["GPU", "VGPU", "PROCESS"]
        assert [line.split()[0] for line in blocks[1][1:]] == ["a", "b"]
        (row,) = [line.split() for line in blocks[2][1:]]
        assert row[:2] == [str(a.process.pid), "a"] and row[3:6] == ["on", "40", "MiB"]


def test_rates_are_those_of_the_interval(two_vgpus: Daemon) -> None:
    """Counts are true at the moment of the look, not at that of an earlier one."""
    with started(two_vgpus, "a", 8, 1) as a:
        for expected in (2, 4, 6):  # a sum launches two kernels
            a.does("sum", 0, 1, 8 * MIB)
            shown = program_of(top(two_vgpus), a)
            assert shown["launches"] == expected and shown["launches_per_s"] == 0
            assert shown["to_host"] == expected // 2
        with subprocess.Popen(
            [sys.executable, "-m", "gdev", "top", "--json", "--interval", "0.5"],
            env=two_vgpus.environment(),
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            done = 6
            while process.poll() is None:
                a.does("sum", 0, 1, 8 * MIB)
                done += 2
            found = json.loads(process.communicate(timeout=TIMEOUT_S)[0])
        shown = program_of(found, a)
        assert 6 < shown["launches"] <= done
        in_interval = shown["launches_per_s"] * found["seconds"]
        assert 2 <= round(in_interval) <= shown["launches"] - 6
        vgpu = vgpu_of(found, "a")
        assert vgpu["launches"] == shown["launches"]
        assert vgpu["launches_per_s"] == shown["launches_per_s"]


def test_wired_memory_is_what_no_turn_moves(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 20, 1) as a:
        a.does("alloc", MIB // 2)
        shown = top(two_vgpus)
        program = program_of(shown, a)
        assert program["used"] == program["wired"] + 20 * MIB and program["wired"] >= MIB // 2
        check_sums(shown)


def test_memory_shared_by_keys_is_the_virtual_gpus(two_vgpus: Daemon) -> None:
    with two_vgpus.program("a", "shared_memory") as a:
        a.does("init")
        a.does("get", 255, 4 * MIB, 0o1640)  # IPC_CREAT
        vgpu = vgpu_of(top(two_vgpus), "a")
        assert vgpu["shared"] == vgpu["used"] == vgpu["wired"] == 4 * MIB


def test_a_program_that_is_stopped_delays_nobody(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 8, 1) as a, started(two_vgpus, "b", 8, 2) as b:
        before = program_of(top(two_vgpus), a)["fills"]
        a.stop()
        b.does("fill", 0, 3, 8 * MIB)
        begin = time.monotonic()
        shown = top(two_vgpus)
        assert time.monotonic() - begin < 5
        assert program_of(shown, a)["fills"] == before and program_of(shown, b)["fills"] == 2
        a.process.send_signal(signal.SIGCONT)


def test_a_virtual_gpu_keeps_the_counts_of_programs_that_ended(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 8, 1) as a:
        a.does("sum", 0, 1, 8 * MIB)
        assert a.says("alloc", 65 * MIB) == OUT_OF_MEMORY
        a.end()
    end = time.monotonic() + TIMEOUT_S
    while top(two_vgpus)["programs"]:
        assert time.monotonic() < end
    vgpu = vgpu_of(top(two_vgpus), "a")
    assert (vgpu["launches"], vgpu["refusals"], vgpu["programs"]) == (2, 1, 0)
    assert vgpu_of(top(two_vgpus), "b")["launches"] == 0


def test_a_forked_child_counts_anew(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 8, 1) as a:
        a.does("sum", 0, 1, 8 * MIB)
        (child,) = a.does("fork")
        a.does("init")
        rows = {one["process"]: one["launches"] for one in top(two_vgpus)["programs"]}
        assert rows == {a.process.pid: 2, child: 0}
        os.kill(child, signal.SIGKILL)


def test_top_without_a_daemon(two_vgpus: Daemon) -> None:
    two_vgpus.must("stop")
    process = two_vgpus.gdev("top", "--once")
    assert (process.returncode, process.stderr) == (0, "") and "no daemon runs" in process.stdout


# --- gdev metrics ---


def test_counters_never_fall(two_vgpus: Daemon) -> None:
    """While programs take turns and end, and from one daemon to the next."""
    with (
        served(two_vgpus) as url,
        started(two_vgpus, "a", 40, 1) as a,
        started(two_vgpus, "b", 40, 2) as b,
    ):
        before = scrape(url)
        assert a.says("alloc", 65 * MIB) == OUT_OF_MEMORY
        for step in range(4):
            if step == 2:
                two_vgpus.kill()
                two_vgpus.start()
            assert a.does("sum", 0, 1, 40 * MIB) == [1]
            assert b.does("check", 0, 2, 40 * MIB) == [1]
            now = scrape(url)
            for key, value in before.items():
                if key[0].endswith("_total"):
                    assert now[key] >= value, key
                elif dict(key[1:]).get("process"):
                    assert key in now
            before = now
        labels = (("process", str(a.process.pid)), ("vgpu", "a"))
        assert before[("gdev_process_launches_total", *labels)] == 8
        assert before[("gdev_process_refusals_total", *labels)] == 1
        assert before[("gdev_process_turns_total", *labels)] >= 4


def test_metrics_are_what_ps_shows(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        assert a.says("alloc", 65 * MIB) == OUT_OF_MEMORY
        text = two_vgpus.must("metrics", "--once")
        found = metrics_of(text)
        rows = {int(row.split()[0]): row.split() for row in two_vgpus.must("ps").splitlines()[1:]}
        for program, vgpu in ((a, "a"), (b, "b")):
            labels = (("process", str(program.process.pid)), ("vgpu", vgpu))
            row = rows[program.process.pid]
            shown = [
                found[(f"gdev_process_memory_{kind}_bytes", *labels)] / MIB
                for kind in ("used", "swapped")
            ]
            assert row[1] == vgpu and shown == [float(row[2]), float(row[-2])]
            assert found[("gdev_process_refusals_total", *labels)] == float(row[4])
            assert found[("gdev_process_phase", ("phase", row[5]), *labels)] == 1
            used = found[("gdev_vgpu_memory_used_bytes", ("vgpu", vgpu))]
            assert used == found[("gdev_process_memory_used_bytes", *labels)]
        helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
        assert {key[0] for key in found} <= helped
        counters = {
            line.split()[2]
            for line in text.splitlines()
            if line.startswith("# TYPE") and line.endswith(" counter")
        }
        assert counters == {name for name in helped if name.endswith("_total")}


def test_a_scrape_without_a_daemon_is_an_error(two_vgpus: Daemon) -> None:
    with served(two_vgpus) as url:
        two_vgpus.must("stop")
        with pytest.raises(urllib.error.HTTPError) as failed:
            scrape(url)
        assert failed.value.code == 500 and b"no daemon runs" in failed.value.read()


@pytest.mark.parametrize("listen", ["127.0.0.1", "9401", "host:port", "a:1/b"])
def test_what_is_no_address_is_refused(two_vgpus: Daemon, listen: str) -> None:
    process = two_vgpus.gdev("metrics", "--listen", listen)
    assert process.returncode == 2 and "--listen is an address and a port" in process.stderr


# --- gdev doctor ---


def doctor(daemon: Daemon, **env: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Returns the exit status, and the findings by check."""
    process = daemon.gdev("doctor", "--json", env=env)
    assert not process.stderr
    return process.returncode, {one["check"]: one for one in json.loads(process.stdout)}


@pytest.fixture
def healthy(two_vgpus: Daemon) -> Daemon:
    """The machine of the test may have less memory than half of it for a container."""
    two_vgpus.must("gpu", "set", "--host-memory", "128MiB")
    return two_vgpus


def test_doctor_where_all_is_well(healthy: Daemon) -> None:
    status, found = doctor(healthy)
    assert status == 0
    assert found["driver"]["text"].startswith(f"{healthy.gpu.driver}, for CUDA ")
    assert found["GPU"]["text"].startswith("1, with virtual memory management")
    assert str(healthy.gpu.interposer) in found["library"]["text"]
    assert "cuFunctionOfTomorrow" in found["functions"]["text"]  # the simulated driver has it
    assert found["daemon"]["level"] == found["programs"]["level"] == "ok"
    text = healthy.must("doctor")
    assert len(text.splitlines()) == len(found)


def test_doctor_without_a_driver(healthy: Daemon, tmp_path: Path) -> None:
    status, found = doctor(healthy, GDEV_DRIVER=str(tmp_path / "nosuch"))
    assert status == 1 and found["driver"]["level"] == "fail"
    assert "nosuch" in found["driver"]["text"] and "install" in found["driver"]["advice"]
    assert found["library"]["level"] == "ok"


def test_doctor_with_a_driver_that_is_none(healthy: Daemon, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    status, found = doctor(healthy, GDEV_DRIVER=str(tmp_path / "libcuda.so.1"))
    assert status == 1 and found["driver"]["level"] == "fail"


def test_doctor_without_the_library(healthy: Daemon, tmp_path: Path) -> None:
    status, found = doctor(healthy, GDEV_PROGRAMS=str(tmp_path))
    assert status == 1 and found["library"]["level"] == "fail"


def test_doctor_without_a_daemon(healthy: Daemon) -> None:
    healthy.must("stop")
    status, found = doctor(healthy)
    assert status == 1 and "no daemon runs" in found["daemon"]["text"]
    assert "gdev run" in found["daemon"]["text"]
    assert "gdev service" in found["daemon"]["advice"]


def test_doctor_judges_settings_by_the_gpu_that_was_there(healthy: Daemon) -> None:
    """They were set before, and the program that brought the GPU has ended."""
    healthy.must("gpu", "set", "--spare", "64MiB")
    with healthy.program("a") as one:
        one.does("init")
        assert one.says("alloc", 2 << 20) == OUT_OF_MEMORY
    status, found = doctor(healthy)
    said = "--spare: 64 MiB, and programs may have 64 MiB"
    assert (status, found["settings"]["text"]) == (1, said)


def test_doctor_names_unknown_functions_of_programs(healthy: Daemon) -> None:
    """A program that asks for a function of tomorrow, and waits where it prints its result."""
    reader, writer = os.pipe()
    environment = healthy.environment() | {
        "GDEV_VGPU": "a",
        "LD_PRELOAD": str(healthy.gpu.interposer),
    }
    # It writes its output when it ends: a full pipe keeps it there.
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    names = ["cuFunctionOfTomorrow"] * 2
    with subprocess.Popen(
        [BUILD / "tests" / "opened", healthy.gpu.kernels, "libcuda.so.1", "addresses", *names],
        env=environment,
        stdout=writer,
    ) as process:
        os.close(writer)
        try:
            end = time.monotonic() + TIMEOUT_S
            while "program" not in (found := doctor(healthy))[1]:
                assert time.monotonic() < end
            assert found[0] == 1
            text = found[1]["program"]["text"]
            assert text == (
                f"process {process.pid}, virtual GPU a: unknown functions: cuFunctionOfTomorrow"
            )
            shown = json.loads(healthy.must("top", "--json", *INTERVAL))["programs"]
            assert [one["unknown_functions"] for one in shown] == [2]
        finally:
            process.kill()
            os.close(reader)
