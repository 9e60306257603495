"""Memory nodes of graphs count for the limit from their first launch on, until a trim."""

from __future__ import annotations

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon
from .test_limits import BLOCK, MIB, used


@pytest.mark.parametrize("kind", ["graph", "captured"])
@pytest.mark.parametrize("call", ["launch", "upload"])
def test_the_memory_of_a_graph_counts(shared: Daemon, kind: str, call: str) -> None:
    with shared.program("a") as program:
        program.does("init")
        graph = program.does(kind, 4 * MIB, 4 * MIB)[0]
        assert used(shared) == "0 B"
        program.does(call, graph)
        assert used(shared) == "8 MiB"
        program.does("launch", graph)
        assert used(shared) == "8 MiB"
        program.does("alloc", 8 * MIB)
        assert program.says("alloc", 1) == OUT_OF_MEMORY
        assert program.does("info") == [0, 16 * MIB]


def test_a_graph_that_does_not_fit_is_not_launched(shared: Daemon) -> None:
    """Neither if one node is too large, nor if all together are; it leaves nothing."""
    with shared.program("a") as program:
        program.does("init")
        key = program.does("alloc", 8 * MIB)[0]
        for sizes in ([10 * MIB], [6 * MIB, 4 * MIB]):
            graph = program.does("graph", *sizes)[0]
            assert program.says("launch", graph) == OUT_OF_MEMORY
            assert used(shared) == "8 MiB"
        program.does("alloc", 8 * MIB)
        program.does("free", key)
        assert program.says("launch", graph) == OUT_OF_MEMORY
        program.does("alloc", 8 * MIB)
        assert program.says("alloc", 1) == OUT_OF_MEMORY


def test_what_the_driver_keeps_counts_until_it_is_trimmed(shared: Daemon) -> None:
    with shared.program("a") as program:
        program.does("init")
        first = program.does("graph", 8 * MIB)[0]
        program.does("launch", first)
        program.does("drop", first)
        assert used(shared) == "8 MiB"
        second = program.does("graph", 8 * MIB)[0]
        program.does("launch", second)  # the same memory
        assert used(shared) == "8 MiB"
        assert program.says("alloc", 10 * MIB) == OUT_OF_MEMORY
        program.does("drop", second)
        program.does("trim")
        assert used(shared) == "0 B"
        program.does("alloc", 16 * MIB)


def test_graphs_share_what_the_pool_has(shared: Daemon) -> None:
    """A graph that fits what is cached is launched, also when the limit is reached."""
    with shared.program("a") as program:
        program.does("init")
        first = program.does("graph", 8 * MIB)[0]
        second = program.does("graph", 8 * MIB)[0]
        program.does("launch", first)
        program.does("drop", first)
        program.does("alloc", 8 * MIB)
        program.does("launch", second)
        assert used(shared) == "16 MiB"


def test_a_graph_makes_others_leave_the_gpu(shared: Daemon) -> None:
    shared.must("vgpu", "add", "b", "--memory", "64MiB")
    shared.must("vgpu", "set", "a", "--memory", "64MiB")
    with shared.program("a") as one, shared.program("b") as other:
        for program in (one, other):
            program.does("init")
        one.does("alloc", 40 * MIB)
        other.does("alloc", BLOCK)
        graph = other.does("graph", 30 * MIB)[0]
        other.does("launch", graph)
        assert used(shared, "b") == "32 MiB"
