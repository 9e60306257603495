"""Pools beside other threads, captures and contexts that end; calls that are not for pools."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program
from .simulated_gpu import Gpu
from .test_limits import used
from .test_pools import (
    CURRENT,
    INVALID,
    LONG_MS,
    MIB,
    NULL,
    THRESHOLD,
    allocated,
    kept,
    started,
)
from .test_swap import wait_for


@pytest.fixture
def program(shared: Daemon) -> Iterator[Program]:
    """A program in the virtual GPU ``a`` of 16 MiB."""
    with started(shared) as made:
        yield made


@pytest.fixture
def racer(two_vgpus: Daemon) -> Iterator[Program]:
    with two_vgpus.program("a", "pool_races") as made:
        made.does("init")
        yield made


def test_a_free_at_once_beside_a_capture_comes_after_the_work(program: Program) -> None:
    """It cannot wait: that would end the capture. So the memory waits."""
    kept(program)
    one, other, captured = (program.does("stream")[0] for _ in range(3))
    key, address = allocated(program, 4 * MIB, one)
    program.does("fill", key, 1, one)
    program.does("spin", LONG_MS, one)
    program.does("verify", key, 1, one)
    program.does("capture", captured)
    program.does("at_once", key)
    assert program.says("at_once", key) == INVALID
    second, elsewhere = allocated(program, 4 * MIB, other)
    program.does("fill", second, 2, other)
    assert elsewhere != address
    program.does("done", captured)
    assert program.does("verdict") == [0]
    assert program.does("amounts", CURRENT)[2] == 4 * MIB
    assert allocated(program, 4 * MIB, other)[1] == address


def test_what_was_freed_beside_a_capture_makes_room_after_it(
    shared: Daemon, program: Program
) -> None:
    stream = program.does("stream")[0]
    key, _ = allocated(program, 16 * MIB)
    program.does("capture", stream)
    program.does("at_once", key)
    assert program.says("plain", MIB) == OUT_OF_MEMORY
    program.does("done", stream)
    program.does("plain", 16 * MIB)
    assert used(shared) == "16 MiB"


def test_a_context_ends_beside_a_thread_that_uses_its_events(racer: Program) -> None:
    racer.does("contexts", 400)


@pytest.mark.parametrize("first", ["init", "bare"])
def test_a_context_ends_beside_a_thread_that_releases_its_chunks(
    two_vgpus: Daemon, first: str
) -> None:
    """There is another context that gets them, or none."""
    with two_vgpus.program("a", "pool_races", {"MALLOC_PERTURB_": "165"}) as racer:
        racer.does(first)
        racer.does("chunks", 300)


@pytest.mark.parametrize(
    ("threshold", "left"), [(14, 14), (13, 12), (12, 12), (9, 6), (7, 6), (5, 4), (3, 2), (1, 0)]
)
def test_a_synchronization_leaves_no_more_than_the_threshold(
    program: Program, threshold: int, left: int
) -> None:
    """Where no range is as small as what is too much, a larger one goes: the smallest."""
    program.does("set", CURRENT, THRESHOLD, threshold * MIB)
    for key in [allocated(program, size)[0] for size in (8 * MIB, 4 * MIB, 4096)]:
        program.does("free", key, NULL)
    program.does("wait")
    assert program.does("amounts", CURRENT)[0] == left * MIB


@pytest.mark.parametrize(("kept_mib", "left"), [(14, 14), (13, 14), (7, 8), (4, 4), (3, 4), (0, 0)])
def test_a_trim_leaves_no_less_than_it_says(program: Program, kept_mib: int, left: int) -> None:
    """CUDA promises it, and an H200 did so, with ranges of 32 MiB."""
    kept(program)
    for key in [allocated(program, size)[0] for size in (8 * MIB, 4 * MIB, 4096)]:
        program.does("free", key, NULL)
    program.does("wait")
    program.does("trim", CURRENT, kept_mib * MIB)
    assert program.does("amounts", CURRENT)[0] == left * MIB


def test_access_that_is_given_meanwhile_holds_for_a_new_range(two_vgpus: Daemon) -> None:
    with two_vgpus.program("a", "pool_races", {"GDEV_SIMULATED_CREATE_MS": "300"}) as racer:
        racer.does("init")
        assert racer.does("access") == [3]  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def test_captures_that_end_with_their_context_hold_up_nothing(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as program:
        allocated(program, 4 * MIB)
        program.does("context")
        program.does("capture", program.does("stream")[0])
        program.does("destroy_context")
        two_vgpus.must("pause", str(program.process.pid))
        wait_for(two_vgpus, program, "off, paused")


@pytest.mark.parametrize("ends", ["done", "end"])
def test_captures_that_end_by_mistake_count_once(program: Program, ends: str) -> None:
    """A stream that has joined a capture does not end it, whatever happens to the stream."""
    kept(program)
    origin, joined, other = (program.does("stream")[0] for _ in range(3))
    for _ in range(2):
        program.does("capture", origin)
        program.does("after", joined, origin)
        program.says(ends, joined)
        assert program.says("done", origin).startswith("error 90")
        joined = program.does("stream")[0]
    program.does("capture", origin)  # so there is one still
    key, address = allocated(program, 4 * MIB, other)
    program.does("spin", LONG_MS, other)
    begin = time.monotonic()
    program.does("at_once", key)
    assert time.monotonic() - begin < 0.5 * LONG_MS / 1000
    program.does("done", origin)
    program.does("wait")
    assert allocated(program, 4 * MIB, other)[1] == address


def test_captures_in_a_green_context_end_with_it(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as program:
        allocated(program, 4 * MIB)
        program.does("green")
        program.does("capture", program.does("stream")[0])
        program.does("end_green")
        two_vgpus.must("pause", str(program.process.pid))
        wait_for(two_vgpus, program, "off, paused")


def test_memory_outlives_a_green_context(shared: Daemon, program: Program) -> None:
    """It is the primary context's, and ends with that, also if the green one ends last."""
    pooled, _ = allocated(program, 2 * MIB)
    program.does("green")
    key = program.does("plain", 4 * MIB)[0]
    allocated(program, 2 * MIB, NULL)
    program.does("free", pooled, NULL)
    program.does("end_green")
    assert used(shared) == "8 MiB"
    program.does("at_once", key)
    program.does("green")
    program.does("plain", 4 * MIB)
    program.does("release")
    assert used(shared) == "8 MiB"
    program.does("end_green")
    assert used(shared) == "0 B"


def test_a_refused_destruction_changes_nothing(racer: Program) -> None:
    in_use, expected = racer.does("destroy", 300_000)
    assert in_use == expected


@pytest.mark.parametrize("kind", ["alloc", "plain"])
@pytest.mark.parametrize("is_off", [False, True])
def test_allocations_are_no_mappings(two_vgpus: Daemon, kind: str, is_off: bool) -> None:
    """As a driver says (an H200 with driver 580 has answered so), also off the GPU."""
    with started(two_vgpus) as program:
        arguments = [NULL, CURRENT] if kind == "alloc" else []
        key = program.does(kind, 4 * MIB, *arguments)[0]
        program.does("fill", key, 5, NULL)
        if is_off:
            two_vgpus.must("pause", str(program.process.pid))
            wait_for(two_vgpus, program, "off, paused")
        for call in ("unmap", "access", "unreserve", *([] if is_off else ["map"])):
            assert program.says(call, key) == INVALID, call
        if is_off:
            two_vgpus.must("resume", str(program.process.pid))
        program.does("verify", key, 5, NULL)
        program.does("fill", key, 6, NULL)
        assert program.does("verdict") == [0]


def test_an_allocation_costs_no_more_where_many_frees_are_pending(
    gpu: Gpu, two_vgpus: Daemon
) -> None:
    took = {}
    for pending in (100, 16_000):
        with two_vgpus.program("a", "pool_races") as racer:
            racer.does("init")
            took[pending] = racer.does("burst", pending, 20)[0]
    assert took[16_000] < 5 * took[100], took
