"""Limits of memory: exact, for each way to allocate, for several programs, while they run."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .gdev_daemon import NOT_READY, OUT_OF_MEMORY, Daemon, Program, seed_of_test

MIB = 1 << 20
BLOCK = 2 * MIB


def used(daemon: Daemon, vgpu: str = "a") -> str:
    """Returns what `gdev vgpu list` says is in use."""
    for line in daemon.must("vgpu", "list").splitlines()[1:]:
        columns = [word.strip() for word in line.split("  ") if word.strip()]
        if columns[0] == vgpu:
            return columns[7]
    raise AssertionError(f"no virtual GPU {vgpu}")


def wait_until_used(daemon: Daemon, expected: str, vgpu: str = "a") -> None:
    """The daemon hears of the end of a process within milliseconds."""
    end = time.monotonic() + 10
    while used(daemon, vgpu) != expected:
        assert time.monotonic() < end, f"{used(daemon, vgpu)} in use, not {expected}"


# Each takes 8 MiB, or exactly what 8 MiB may hold.
KINDS = [
    ("alloc", 8 * MIB),
    ("managed", 8 * MIB),
    ("async", 8 * MIB),
    ("pool", 8 * MIB),
    ("thread", 8 * MIB),
    ("pitch", 512, 16384),
    ("array", 2048, 1024),
    ("array3d", 128, 128, 128),
    ("mipmapped", 1024, 1024, 11),
    ("create", 8 * MIB),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_the_limit_is_exact_for_each_way_to_allocate(
    daemon: Daemon, kind: tuple[object, ...]
) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as program:
        program.does("init")
        first = program.does(*kind)[0]
        program.does(*kind)
        assert program.says(*kind) == OUT_OF_MEMORY
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert used(daemon) == "16 MiB"
        program.does("free", first)
        program.does("wait")  # until then, pools keep it
        assert used(daemon) == "8 MiB"
        program.does(*kind)
        assert program.says("alloc", 1) == OUT_OF_MEMORY


def test_a_chunk_is_in_use_until_it_is_released_and_unmapped(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        chunk = program.does("create", 8 * MIB)[0]
        program.does("map", chunk)
        program.does("fill", chunk, 7, 8 * MIB)
        program.does("free", chunk)
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert program.does("check", chunk, 7, 8 * MIB) == [1]
        program.does("unmap", chunk)
        program.does("alloc", 8 * MIB)


def test_a_program_sees_the_virtual_gpu(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as one, daemon.program("a") as other:
        one.does("init")
        other.does("init")
        one.does("alloc", 4 * MIB)
        assert one.does("total") == [16 * MIB]
        assert other.does("info") == [12 * MIB, 16 * MIB]


def test_a_limit_above_the_gpu_shows_the_gpu(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "1TiB")
    with daemon.program("a") as program:
        program.does("init")
        assert program.does("info") == [64 * MIB, 64 * MIB]
        assert program.says("alloc", 66 * MIB) == OUT_OF_MEMORY  # of the GPU itself
        assert used(daemon) == "0 B"  # what failed is not in use


def test_programs_of_one_virtual_gpu_share_its_limit(daemon: Daemon) -> None:
    """A program that has been granted more than it uses does not keep it from another."""
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as one, daemon.program("a") as other:
        one.does("init")
        other.does("init")
        key = one.does("alloc", BLOCK)[0]  # its grant is of all 16 MiB
        for _ in range(7):
            other.does("alloc", BLOCK)
        assert other.says("alloc", 1) == OUT_OF_MEMORY
        one.does("free", key)
        other.does("alloc", BLOCK)
        assert one.says("alloc", 1) == OUT_OF_MEMORY


def test_virtual_gpus_do_not_touch_each_other(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    daemon.must("vgpu", "add", "b", "--memory", "8MiB")
    with daemon.program("a") as one, daemon.program("b") as other:
        one.does("init")
        other.does("init")
        one.does("alloc", 8 * MIB)
        assert one.says("alloc", 1) == OUT_OF_MEMORY
        other.does("alloc", 8 * MIB)


def test_a_limit_changes_while_programs_run(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        key = program.does("alloc", 8 * MIB)[0]
        daemon.must("vgpu", "set", "a", "--memory", "16MiB")
        program.does("alloc", 8 * MIB)
        daemon.must("vgpu", "set", "a", "--memory", "4MiB")
        program.does("free", key)
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert program.does("info") == [0, 4 * MIB]
        assert used(daemon) == "8 MiB"  # nothing is taken away


def test_a_lower_limit_takes_back_what_was_granted_and_not_used(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.does("alloc", BLOCK)
        daemon.must("vgpu", "set", "a", "--memory", "4MiB")
        program.does("alloc", BLOCK)
        assert program.says("alloc", 1) == OUT_OF_MEMORY


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_the_memory_of_a_program_that_is_gone_is_free(
    daemon: Daemon, how: signal.Signals | None
) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.does("alloc", 16 * MIB)
        if how is None:
            program.end()
        else:
            program.process.send_signal(how)
            program.process.wait()
        wait_until_used(daemon, "0 B")
    with daemon.program("a") as program:
        program.does("init")
        program.does("alloc", 16 * MIB)


def test_the_end_of_a_context_frees_its_memory(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.does("alloc", 8 * MIB)
        program.does("reset")
        program.does("alloc", 8 * MIB)


def test_a_forked_child_is_a_client_of_its_own(daemon: Daemon) -> None:
    """It has nothing of its parent's, and its parent loses nothing by it."""
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.does("alloc", 8 * MIB)
        child = program.does("fork")[0]
        program.does("init")
        key = program.does("alloc", 8 * MIB)[0]
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert used(daemon) == "16 MiB"
        program.does("free", key)
        assert used(daemon) == "8 MiB"
        program.does("alloc", 4 * MIB)
        program.process.kill()
        program.process.wait()
        # The parent is gone; its child, which had its descriptors, goes on.
        wait_until_used(daemon, "4 MiB")
        os.kill(child, signal.SIGKILL)
        wait_until_used(daemon, "0 B")


def test_what_is_refused_is_said_once_with_all_names(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.says("alloc", 9 * MIB)
        program.says("alloc", 9 * MIB)
        said = program.end()
    assert said.count("\n") == 1
    for part in (
        f"process {program.process.pid}",
        "virtual GPU a",
        "limit 8.0 MiB",
        "no memory for 10.0 MiB",
    ):
        assert part in said
    assert daemon.must("vgpu", "list").splitlines()[1].split()[-1] == "2"


def test_programs_without_a_virtual_gpu_do_not_start(daemon: Daemon) -> None:
    with daemon.program("nosuch") as program:
        assert program.says("init") == NOT_READY
        assert "nosuch" in program.end()


def test_a_daemon_that_comes_back_finds_everything(daemon: Daemon) -> None:
    """Virtual GPUs are kept in a file; programs say what they have when they ask again."""
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as one, daemon.program("a") as other:
        one.does("init")
        other.does("init")
        one.does("alloc", 8 * MIB)
        daemon.kill()
        daemon.start()
        assert one.does("info") == [8 * MIB, 16 * MIB]
        other.does("alloc", 8 * MIB)
        assert one.says("alloc", 1) == OUT_OF_MEMORY
        assert used(daemon) == "16 MiB"


def test_without_a_daemon_programs_keep_what_they_have(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        key = program.does("alloc", 4 * MIB)[0]
        daemon.kill()
        program.does("fill", key, 5, 4 * MIB)
        assert program.does("check", key, 5, 4 * MIB) == [1]
        program.does("alloc", 4 * MIB)  # granted before
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        program.does("free", key)
        program.does("alloc", 4 * MIB)


def test_an_allocation_waits_for_a_daemon_that_is_started_anew(daemon: Daemon) -> None:
    """But not for long if there comes none."""
    daemon.must("vgpu", "add", "a", "--memory", "48MiB")
    with ThreadPoolExecutor(1) as beside, daemon.program("a") as program:
        program.does("init")
        daemon.kill()
        answer = beside.submit(program.does, "alloc", 40 * MIB)
        time.sleep(0.5)
        daemon.start()
        answer.result()
        daemon.kill()
        begin = time.monotonic()
        assert program.says("alloc", 40 * MIB) == OUT_OF_MEMORY
        assert time.monotonic() - begin < 10
        begin = time.monotonic()
        assert program.says("alloc", 40 * MIB) == OUT_OF_MEMORY
        assert time.monotonic() - begin < 1


def test_a_daemon_that_hangs_holds_programs_up_for_seconds_only(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        assert program.says("alloc", 9 * MIB) == OUT_OF_MEMORY
        assert time.monotonic() - begin < 10
        begin = time.monotonic()
        assert program.does("info") == [8 * MIB, 8 * MIB]  # as the daemon said last
        assert program.says("alloc", 9 * MIB) == OUT_OF_MEMORY
        assert time.monotonic() - begin < 1  # it is not asked again at once
        daemon.process.send_signal(signal.SIGCONT)
        while program.says("alloc", 8 * MIB) == OUT_OF_MEMORY:
            assert time.monotonic() - begin < 20


def test_signals_do_not_make_it_longer(daemon: Daemon) -> None:
    """A profiler's timer interrupts each wait every 20 ms."""
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.does("timer")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        assert program.says("alloc", 9 * MIB) == OUT_OF_MEMORY
        assert time.monotonic() - begin < 10


def test_a_grant_of_a_daemon_that_is_gone_is_not_used_beside_a_new_one(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as one, daemon.program("a") as other:
        one.does("init")
        one.does("alloc", BLOCK)  # all 16 MiB are granted
        daemon.kill()
        daemon.start()
        one.does("alloc", BLOCK)
        other.does("init")
        for _ in range(6):
            other.does("alloc", BLOCK)
        assert other.says("alloc", 1) == OUT_OF_MEMORY
        assert one.says("alloc", 1) == OUT_OF_MEMORY


def test_when_the_daemon_ends_programs_keep_what_they_use_and_no_more(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as program:
        program.does("init")
        key = program.does("alloc", 8 * MIB)[0]
        daemon.must("stop")
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert program.does("info") == [8 * MIB, 16 * MIB]
        program.does("free", key)
        assert program.says("alloc", 1) == OUT_OF_MEMORY


def test_a_retained_chunk_is_in_use(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        chunk = program.does("create", 8 * MIB)[0]
        program.does("map", chunk)
        program.does("free", chunk)
        again = program.does("retain", chunk)[0]
        program.does("unmap", chunk)
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        program.does("free", again)
        program.does("alloc", 8 * MIB)


def test_programs_that_allocate_at_the_same_time_all_get_what_there_is(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "32MiB")  # so they must ask often
    programs = [daemon.program("a") for _ in range(4)]
    try:
        for program in programs:
            program.does("init")
            assert program.process.stdin is not None
            program.process.stdin.write(f"churn {4 * MIB} 400\n")
            program.process.stdin.flush()
        for program in programs:
            assert program.process.stdout is not None
            assert program.process.stdout.readline().strip() == "ok 0"
    finally:
        for program in programs:
            program.process.kill()
            program.process.communicate()


def test_random_operations_match_a_model(daemon: Daemon) -> None:
    """Three programs in two virtual GPUs allocate and free at random, and limits change."""
    seed = seed_of_test()
    chance = random.Random(seed)
    limits = {"a": 16, "b": 12}
    for name, limit in limits.items():
        daemon.must("vgpu", "add", name, "--memory", f"{limit}MiB")
    owners = ["a", "a", "b"]
    programs: list[Program] = [daemon.program(name) for name in owners]
    sizes: list[dict[int, int]] = [{} for _ in programs]  # MiB of each key
    try:
        for program in programs:
            program.does("init")
        for _ in range(300):
            which = chance.randrange(len(programs))
            name, held = owners[which], sizes[which]
            in_use = sum(
                sum(size.values())
                for owner, size in zip(owners, sizes, strict=True)
                if owner == name
            )
            action = chance.random()
            if action < 0.03:
                limits[name] = chance.randrange(1, 9) * 2
                daemon.must("vgpu", "set", name, "--memory", f"{limits[name]}MiB")
            elif action < 0.45 and held:
                key = chance.choice(list(held))
                programs[which].does("free", key)
                del held[key]
            else:
                size = chance.randrange(1, 5) * 2  # MiB
                answer = programs[which].says("alloc", size * MIB)
                fits = in_use + size <= limits[name]
                assert (answer != OUT_OF_MEMORY) == fits, f"seed {seed}: {answer}"
                if fits:
                    held[int(answer.split()[1])] = size
    finally:
        for program in programs:
            program.process.kill()
            program.process.communicate()


def test_no_limit_is_said_in_words(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "none")
    with daemon.program("a") as program:
        program.does("init")
        assert program.says("alloc", 65 * MIB) == OUT_OF_MEMORY
        said = program.end()
        assert "the GPU is full, or the host for what would leave it (no limit; in use 0.0 " in said
