"""Programs that use two GPUs: their turns are on the first one that they allocate on."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program
from .simulated_gpu import BUILD, TIMEOUT_S, Gpu
from .test_swap import MIB, wait_for


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One of a machine with two GPUs of 64 MiB each, and the virtual GPUs ``a`` and ``b``."""
    made = Daemon(Gpu(Path(f"{tmp_path / 'gpu'}:{tmp_path / 'other'}"), 64 * MIB), tmp_path)
    made.start()
    for name in ("a", "b"):
        made.must("vgpu", "add", name, "--memory", "112MiB")
    yield made
    made.kill()


def program(daemon: Daemon, vgpu: str) -> Program:
    made = daemon.program(vgpu)
    made.does("init")
    return made


def holds(one: Program, gpu: int, mebibytes: int, value: int) -> int:
    """Lets a program fill so much memory of a GPU. Returns its key."""
    one.does("device", gpu)
    key = one.does("alloc", mebibytes * MIB)[0]
    one.does("fill", key, value, mebibytes * MIB)
    return key


def has(one: Program, key: int, mebibytes: int, value: int) -> bool:
    return one.does("check", key, value, mebibytes * MIB) == [1]


def shown(daemon: Daemon, one: Program) -> dict[str, Any]:
    found = json.loads(daemon.must("ps", "--json"))
    return next((row for row in found if row["process"] == one.process.pid), {})


def in_mebibytes(row: dict[str, Any], *keys: str) -> list[int]:
    return [row[key] // MIB for key in keys if row]


def wait_until_shown(daemon: Daemon, one: Program, used: int, swapped: int, wired: int) -> None:
    """Waits until gdev ps shows so many MiB of a program."""
    end = time.monotonic() + TIMEOUT_S
    while (now := in_mebibytes(shown(daemon, one), "used", "swapped", "wired")) != [
        used,
        swapped,
        wired,
    ]:
        assert time.monotonic() < end, now
        time.sleep(0.02)


def test_the_simulated_driver_has_two(daemon: Daemon) -> None:
    """What the tests below stand on."""
    with program(daemon, "a") as one:
        one.does("device", 1)
        assert one.says("device", 2).startswith("error")
        keys = holds(one, 1, 40, 1), holds(one, 0, 40, 2)
        assert has(one, keys[0], 40, 1) and has(one, keys[1], 40, 2)


@pytest.mark.parametrize("home", [0, 1])
def test_a_program_that_is_off_hears_of_memory_that_is_freed_on_its_gpu(
    daemon: Daemon, home: int
) -> None:
    """It has a context on the other GPU too, which knows nothing of that one."""
    environment = daemon.gpu.environment(under_gdev=False)
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        program(daemon, "a") as one,
        program(daemon, "b") as small,
        Program([str(BUILD / "tests" / "memory")], environment) as stranger,
    ):
        one.does("device", 1 - home)
        key = holds(one, home, 40, 7)
        holds(one, 1 - home, 2, 8)
        daemon.must("pause", str(one.process.pid))
        wait_for(daemon, one, "off, paused")
        stranger.does("init")
        holds(stranger, home, 30, 3)
        holds(small, home, 2, 4)  # which reports what is free
        waiting = threads.submit(has, one, key, 40, 7)
        daemon.must("resume", str(one.process.pid))
        time.sleep(0.3)
        assert not waiting.done()
        stranger.process.kill()
        assert waiting.result(10)


def test_the_limit_holds_for_all_gpus_together(daemon: Daemon) -> None:
    with program(daemon, "a") as one:
        keys = [holds(one, gpu, 48, gpu + 1) for gpu in (0, 1)]
        for gpu in (0, 1):
            one.does("device", gpu)
            assert one.says("alloc", 17 * MIB) == OUT_OF_MEMORY
            assert one.does("info")[0] == 16 * MIB  # of the limit, which is less than the GPU has
        assert in_mebibytes(shown(daemon, one), "used", "wired") == [96, 48]
        one.does("free", keys[1])
        assert in_mebibytes(shown(daemon, one), "used", "wired") == [48, 0]
        holds(one, 1, 62, 3)
        assert has(one, keys[0], 48, 1)


@pytest.mark.parametrize("home", [0, 1])
def test_memory_on_the_other_gpu_stays_there(daemon: Daemon, home: int) -> None:
    """While that on the first one takes turns with another program's."""
    with program(daemon, "a") as a, program(daemon, "b") as b:
        first = holds(a, home, 40, 1)
        second = holds(a, 1 - home, 40, 2)
        third = holds(b, home, 40, 3)
        wait_until_shown(daemon, a, used=80, swapped=40, wired=40)
        for _ in range(3):
            assert has(a, first, 40, 1) and has(a, second, 40, 2)
            assert has(b, third, 40, 3)


def test_it_takes_no_room_on_the_first_gpu(daemon: Daemon) -> None:
    with program(daemon, "a") as a, program(daemon, "b") as b:
        keys = [holds(a, 0, 40, 1), holds(a, 1, 56, 2)]
        other = holds(b, 0, 20, 3)
        assert has(a, keys[0], 40, 1) and has(b, other, 20, 3) and has(a, keys[1], 56, 2)
        assert [shown(daemon, one)["state"] for one in (a, b)] == ["on", "on"]
        assert [shown(daemon, one)["swapped"] for one in (a, b)] == [0, 0]


def test_programs_on_different_gpus_take_no_turns(daemon: Daemon) -> None:
    with program(daemon, "a") as a, program(daemon, "b") as b:
        keys = holds(a, 0, 60, 1), holds(b, 1, 60, 2)
        gpus = [shown(daemon, one)["gpu"] for one in (a, b)]
        assert None not in gpus and gpus[0] != gpus[1]
        assert has(a, keys[0], 60, 1) and has(b, keys[1], 60, 2)
        assert [shown(daemon, one)["swapped"] for one in (a, b)] == [0, 0]
        rows = json.loads(daemon.must("gpu", "list", "--json"))["gpus"]
        assert sorted(row["gpu"] for row in rows) == sorted(gpus)


def test_a_new_daemon_knows_what_is_elsewhere(daemon: Daemon) -> None:
    with program(daemon, "a") as a, program(daemon, "b") as b:
        keys = [holds(a, 0, 40, 1), holds(a, 1, 40, 2)]
        daemon.kill()
        daemon.start()
        wait_until_shown(daemon, a, used=80, swapped=0, wired=40)
        other = holds(b, 0, 40, 3)
        wait_until_shown(daemon, a, used=80, swapped=40, wired=40)
        assert has(a, keys[0], 40, 1) and has(a, keys[1], 40, 2) and has(b, other, 40, 3)
        a.does("free", keys[1])
        wait_until_shown(daemon, a, used=40, swapped=0, wired=0)


def test_memory_that_no_gpu_has_is_refused_without_a_trace(daemon: Daemon) -> None:
    """The second GPU is full of another program's, though no limit is reached."""
    with program(daemon, "a") as a, program(daemon, "b") as b:
        holds(b, 1, 60, 1)
        key = holds(a, 0, 8, 2)
        a.does("device", 1)
        assert a.says("alloc", 40 * MIB) == OUT_OF_MEMORY
        assert in_mebibytes(shown(daemon, a), "used", "wired") == [8, 0]
        assert has(a, key, 8, 2)


def test_others_take_turns_beside_what_stays(daemon: Daemon) -> None:
    """The second GPU has room for one of two programs, because another one's memory stays there."""
    with program(daemon, "a") as a, program(daemon, "b") as b, program(daemon, "b") as c:
        stays = [holds(a, 0, 8, 1), holds(a, 1, 32, 2)]
        keys = holds(b, 1, 20, 3), holds(c, 1, 20, 4)
        for _ in range(3):
            assert has(b, keys[0], 20, 3) and has(c, keys[1], 20, 4)
        assert has(a, stays[0], 8, 1) and has(a, stays[1], 32, 2)
        assert shown(daemon, a)["swapped"] == 0
        b.does("device", 1)
        assert b.says("alloc", 40 * MIB) == OUT_OF_MEMORY  # it could never fit


def test_a_program_that_is_killed_leaves_nothing_on_either(daemon: Daemon) -> None:
    with program(daemon, "a") as a:
        holds(a, 0, 60, 1)
        holds(a, 1, 40, 2)
    with program(daemon, "b") as b:
        keys = holds(b, 0, 56, 3), holds(b, 1, 56, 4)
        assert has(b, keys[0], 56, 3) and has(b, keys[1], 56, 4)
        assert in_mebibytes(shown(daemon, b), "used", "swapped") == [112, 0]


def test_the_end_of_a_context_frees_what_is_on_its_gpu_only(daemon: Daemon) -> None:
    with program(daemon, "a") as a:
        keys = holds(a, 0, 40, 1), holds(a, 1, 40, 2)
        a.does("device", 1)
        a.does("reset")  # of the first GPU
        wait_until_shown(daemon, a, used=40, swapped=0, wired=40)
        assert has(a, keys[1], 40, 2)
