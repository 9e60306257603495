"""Requests for memory that wait: what the daemon keeps for them, and what it gives others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from .gdev_daemon import Daemon
from .jobs import wait_until
from .raw_client import ANY, NOT_ANY_MORE, ORDER, OUT, ROOM, UNIT, RawClient, leave_together
from .test_protocol import GPUS, MIB, ask, connect

AGAIN, OUT_OF_MEMORY, ON_HOST = 11, 12, 18  # EAGAIN, ENOMEM, EXDEV
FIRST, SECOND = 1, 2  # GPUs
SEGMENT = 64 * MIB  # of the host's memory


def test_a_smaller_request_keeps_what_is_reserved_for_a_larger_one(large_vgpus: Daemon) -> None:
    """Two threads of a client wait. What is left of it nobody else gets."""
    with (
        RawClient(large_vgpus, "a", FIRST) as one,
        RawClient(large_vgpus, "b", FIRST) as other,
        RawClient(large_vgpus, "b", FIRST) as third,
    ):
        other.gets(60 * MIB)
        assert one.wants(40 * MIB) == AGAIN
        wait_until(lambda: other.read(ORDER) & OUT != 0)
        other.leaves()
        assert one.wants(1 * MIB) == 0
        assert third.wants(30 * MIB) == AGAIN
        assert one.wants(40 * MIB) == 0


def test_a_request_that_is_refused_at_last_waits_no_more(large_vgpus: Daemon) -> None:
    """It waited for room on the GPU, and then the host could not hold what must leave for it."""
    with RawClient(large_vgpus, "a", FIRST) as one, RawClient(large_vgpus, "b", FIRST) as other:
        other.gets(60 * MIB)
        assert one.wants(40 * MIB) == AGAIN
        assert "waits for memory" in large_vgpus.must("ps")
        large_vgpus.must("gpu", "set", "--host-memory", "0")
        assert one.wants(40 * MIB) == OUT_OF_MEMORY
        assert "waits for memory" not in large_vgpus.must("ps")


def test_a_request_that_was_served_otherwise_waits_no_more(large_vgpus: Daemon) -> None:
    """Another thread has freed what it needs. A larger one of that thread goes on."""
    with RawClient(large_vgpus, "a", FIRST) as one, RawClient(large_vgpus, "b", FIRST) as other:
        other.gets(60 * MIB)
        assert one.wants(40 * MIB) == AGAIN
        assert one.wants(20 * MIB, NOT_ANY_MORE) == 0
        assert "waits for memory" in large_vgpus.must("ps")
        assert one.wants(40 * MIB, NOT_ANY_MORE) == 0
        assert "waits for memory" not in large_vgpus.must("ps")


def test_a_question_takes_turns_on_no_gpu(large_vgpus: Daemon) -> None:
    """A program may ask for the free memory of all GPUs, and then use any."""
    with RawClient(large_vgpus, "a", SECOND) as one, RawClient(large_vgpus, "b", FIRST) as other:
        large_vgpus.must("gpu", "set", "--memory", "48MiB")
        other.gets(20 * MIB)
        for gpu in (FIRST, SECOND):
            assert one.could_have(gpu) == 48 * MIB
        one.gets(30 * MIB)
        assert one.could_have(FIRST) == one.could_have(SECOND) == 48 * MIB
        with connect(large_vgpus) as to:
            assert [ask(to, GPUS, b"", i)[1][0] for i in range(2)] == [FIRST, SECOND]


# --- In the host's memory ---


@pytest.fixture
def stuck(large_vgpus: Daemon) -> Iterator[list[RawClient]]:
    """
    Two jobs of two clients. The second client has 20 MiB of its GPU and asks for 20 MiB more, which
    the other job has, and that waits for the first.
    """
    with contextlib.ExitStack() as stack:

        def member(vgpu: str, gpu: int, job: int, size: int) -> RawClient:
            made = stack.enter_context(RawClient(large_vgpus, vgpu, gpu, job, 2))
            made.gets(size)
            return made

        one, other = member("a", FIRST, 5, 40 * MIB), member("a", SECOND, 5, 20 * MIB)
        small, large = member("b", FIRST, 6, 20 * MIB), member("b", SECOND, 6, 40 * MIB)
        assert small.wants(20 * MIB, ANY) == AGAIN
        assert other.wants(20 * MIB, ANY) == AGAIN
        time.sleep(2.2)
        assert other.wants(20 * MIB, ANY) == ON_HOST
        other.has(20 * MIB, elsewhere=20 * MIB)
        yield [one, other, small, large]


def test_it_must_fit_the_gpu_with_the_rest(stuck: list[RawClient]) -> None:
    """There are 20 MiB, 20 MiB on the host, and 24 MiB that it could have beside."""
    other, *rest = stuck[1:]
    assert other.wants(24 * MIB + UNIT) == OUT_OF_MEMORY
    assert other.wants(4 * MIB) == 0
    assert other.wants(UNIT) == AGAIN
    for client in rest:
        client.end()
    wait_until(lambda: other.wants(10 * MIB) == 0)
    assert other.wants(10 * MIB + UNIT) == OUT_OF_MEMORY


def test_the_host_must_hold_it(stuck: list[RawClient]) -> None:
    """Twice what can leave, and a segment."""
    other = stuck[1]
    assert other.holds(2 * 40 * MIB + SEGMENT + UNIT) == OUT_OF_MEMORY
    assert other.holds(2 * 40 * MIB + SEGMENT) == 0


def test_it_comes_to_the_gpu_with_the_rest(stuck: list[RawClient]) -> None:
    one, other, *rest = stuck
    leave_together([one, other])
    other.has(40 * MIB, 0)  # all of it is counted alike
    for client in rest:
        client.end()
    one.waits()
    for client, size in ((one, 40 * MIB), (other, 40 * MIB)):
        wait_until(lambda client=client, size=size: client.read(ROOM) * UNIT == size)
    for client in (one, other):
        client.enters()
    assert other.wants(24 * MIB + UNIT) == OUT_OF_MEMORY
    assert other.wants(24 * MIB) == 0


def test_it_is_there_no_more_when_it_was_freed(stuck: list[RawClient]) -> None:
    other = stuck[1]
    other.frees(20 * MIB)
    assert other.wants(4 * MIB) == 0
    assert other.wants(40 * MIB) == AGAIN
    assert other.wants(40 * MIB + UNIT) == OUT_OF_MEMORY
