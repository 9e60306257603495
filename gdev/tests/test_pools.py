"""Stream-ordered allocations: the order of streams, what pools keep, the limit, and turns."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import time
from collections.abc import Iterator

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program, seed_of_test
from .simulated_gpu import Gpu
from .test_limits import used, wait_until_used
from .test_swap import state, wait_for

MIB = 1 << 20
UNIT = 512
INVALID = "error 1"
CURRENT = -1  # the device's current pool
NULL, THREAD = -1, -2  # streams
OPPORTUNISTIC, DEPENDENCIES, THRESHOLD = 2, 3, 4  # attributes
RESERVED_HIGH, USED_HIGH = 6, 8
NO_HANDLES, BY_DESCRIPTOR = 0, 1
EVERYTHING = (1 << 63) - 1
LONG_MS = 300  # longer than a few calls take


@contextlib.contextmanager
def started(daemon: Daemon, vgpu: str = "a") -> Iterator[Program]:
    with daemon.program(vgpu, "pools") as program:
        program.does("init")
        yield program


@pytest.fixture
def program(shared: Daemon) -> Iterator[Program]:
    """A program in the virtual GPU ``a`` of 16 MiB."""
    with started(shared) as made:
        yield made


def allocated(
    program: Program, size: int, stream: int = NULL, pool: int = CURRENT
) -> tuple[int, int]:
    """Returns the key and the address."""
    key, address = program.does("alloc", size, stream, pool)
    return key, address


def kept(program: Program) -> None:
    """The current pool keeps all that is freed."""
    program.does("set", CURRENT, THRESHOLD, EVERYTHING)


def test_blocks_are_as_in_a_naive_model(gpu: Gpu) -> None:
    process = gpu.run("pool_blocks", str(seed_of_test()), "20000", under_gdev=False)
    assert process.stdout == "right\n", process.stdout


def test_a_stream_gets_at_once_what_was_freed_in_it(program: Program) -> None:
    stream = program.does("stream")[0]
    key, address = allocated(program, 4 * MIB, stream)
    program.does("spin", LONG_MS, stream)
    program.does("free", key, stream)
    assert allocated(program, 4 * MIB, stream)[1] == address


def test_another_stream_gets_it_when_the_free_has_happened(program: Program) -> None:
    kept(program)
    one, other = (program.does("stream")[0] for _ in range(2))
    key, address = allocated(program, 4 * MIB, one)
    program.does("spin", LONG_MS, one)
    program.does("free", key, one)
    second, elsewhere = allocated(program, 4 * MIB, other)
    assert elsewhere != address
    program.does("sync", one)
    assert allocated(program, 4 * MIB, other)[1] == address
    assert program.does("amounts", CURRENT) == [8 * MIB] * 4
    program.does("free", second, other)


def test_where_nothing_else_is_left_another_stream_waits_for_the_free(program: Program) -> None:
    """And its bytes are its own: what the first stream still does comes before."""
    one, other = (program.does("stream")[0] for _ in range(2))
    key, address = allocated(program, 16 * MIB, one)
    program.does("fill", key, 1, one)
    program.does("spin", LONG_MS, one)
    program.does("verify", key, 1, one)
    program.does("free", key, one)
    begin = time.monotonic()
    second, again = allocated(program, 16 * MIB, other)
    assert again == address and time.monotonic() - begin < LONG_MS / 1000
    program.does("fill", second, 2, other)
    program.does("verify", second, 2, other)
    assert program.does("verdict") == [0]


def test_without_dependencies_it_waits_for_the_work_itself(program: Program) -> None:
    program.does("set", CURRENT, DEPENDENCIES, 0)
    one, other = (program.does("stream")[0] for _ in range(2))
    key, _ = allocated(program, 16 * MIB, one)
    program.does("spin", LONG_MS, one)
    program.does("free", key, one)
    begin = time.monotonic()
    allocated(program, 16 * MIB, other)
    assert time.monotonic() - begin > 0.5 * LONG_MS / 1000


def test_without_opportunism_another_stream_gets_it_after_a_synchronization(
    program: Program,
) -> None:
    kept(program)
    program.does("set", CURRENT, OPPORTUNISTIC, 0)
    one, other = (program.does("stream")[0] for _ in range(2))
    key, address = allocated(program, 4 * MIB, one)
    program.does("free", key, one)
    time.sleep(0.1)
    assert allocated(program, 4 * MIB, other)[1] != address


def test_each_thread_has_a_default_stream_of_its_own(program: Program) -> None:
    key, address = program.does("thread", 4 * MIB)
    program.does("spin", LONG_MS, THREAD)
    program.does("thread_free", key)
    assert allocated(program, 4 * MIB, NULL)[1] != address
    assert allocated(program, 4 * MIB, THREAD)[1] == address


@pytest.mark.parametrize("how", ["sync", "event", "wait"])
def test_a_synchronization_gives_back_what_is_beyond_the_threshold(
    shared: Daemon, program: Program, how: str
) -> None:
    stream = program.does("stream")[0]
    program.does("set", CURRENT, THRESHOLD, 4 * MIB)
    keys = [allocated(program, 4 * MIB, stream)[0] for _ in range(3)]
    for key in keys:
        program.does("free", key, stream)
    assert program.does("amounts", CURRENT) == [12 * MIB, 12 * MIB, 0, 12 * MIB]
    assert used(shared) == "12 MiB"
    program.does(how, *([stream] if how != "wait" else []))
    # An event that is waited for is later than those of the frees.
    assert program.does("amounts", CURRENT)[0] == 4 * MIB
    assert used(shared) == "4 MiB"
    program.does("set", CURRENT, THRESHOLD, 0)
    program.does(how, *([stream] if how != "wait" else []))
    assert used(shared) == "0 B"


def test_what_is_in_use_is_not_given_back(shared: Daemon, program: Program) -> None:
    """Nor are its neighbours in the same range."""
    keys = [allocated(program, 4096)[0] for _ in range(3)]
    large = allocated(program, 4 * MIB)[0]
    assert program.does("amounts", CURRENT) == [6 * MIB, 6 * MIB] + [4 * MIB + 3 * 4096] * 2
    for key in (keys[0], keys[2], large):
        program.does("free", key, NULL)
    program.does("wait")
    assert used(shared) == "2 MiB"
    program.does("free", keys[1], NULL)
    program.does("wait")
    assert used(shared) == "0 B"


def test_a_trim_keeps_what_it_is_told_to(shared: Daemon, program: Program) -> None:
    kept(program)
    keys = [allocated(program, 4 * MIB)[0] for _ in range(3)]
    for key in keys:
        program.does("free", key, NULL)
    program.does("wait")
    for left in (12, 5, 4, 0):
        program.does("trim", CURRENT, left * MIB)
        expected = {12: 12, 5: 8, 4: 4, 0: 0}[left]
        assert program.does("amounts", CURRENT)[0] == expected * MIB
        assert used(shared) == (f"{expected} MiB" if expected else "0 B")


def test_high_marks_are_reset(program: Program) -> None:
    key, _ = allocated(program, 4 * MIB)
    allocated(program, 1)
    program.does("free", key, NULL)
    program.does("wait")
    assert program.does("amounts", CURRENT) == [2 * MIB, 6 * MIB, UNIT, 4 * MIB + UNIT]
    program.does("set", CURRENT, RESERVED_HIGH, 0)
    program.does("set", CURRENT, USED_HIGH, 0)
    assert program.does("amounts", CURRENT) == [2 * MIB, 2 * MIB, UNIT, UNIT]


@pytest.mark.parametrize("kind", ["plain", "alloc"])
def test_what_is_cached_makes_room_at_the_exact_limit(
    shared: Daemon, program: Program, kind: str
) -> None:
    """For other pools too, also while work uses it."""
    kept(program)
    pool = program.does("pool", NO_HANDLES)[0]
    arguments = [] if kind == "plain" else [NULL, pool]
    key, _ = allocated(program, 8 * MIB)
    live, _ = allocated(program, 8 * MIB)
    assert program.says(kind, 1, *arguments) == OUT_OF_MEMORY
    program.does("spin", LONG_MS, NULL)
    program.does("free", key, NULL)
    assert program.says(kind, 8 * MIB + 1, *arguments) == OUT_OF_MEMORY
    program.does(kind, 8 * MIB, *arguments)
    assert used(shared) == "16 MiB"
    assert program.says(kind, 1 if kind == "plain" else 4 * MIB, *arguments) == OUT_OF_MEMORY
    program.does("free", live, NULL)


def test_what_is_cached_refuses_nothing(shared: Daemon, program: Program) -> None:
    """An allocation that fits after a trim is not counted as refused."""
    kept(program)
    program.does("free", allocated(program, 16 * MIB)[0], NULL)
    program.does("plain", 16 * MIB)
    assert shared.must("vgpu", "list").splitlines()[1].split()[-1] == "0"


def test_a_pool_that_is_destroyed_keeps_what_is_in_use(shared: Daemon, program: Program) -> None:
    pool = program.does("pool", NO_HANDLES)[0]
    program.does("set", pool, THRESHOLD, EVERYTHING)
    key, _ = allocated(program, 4 * MIB, NULL, pool)
    gone, _ = allocated(program, 4 * MIB, NULL, pool)
    program.does("fill", key, 7, NULL)
    program.does("free", gone, NULL)
    program.does("wait")
    assert used(shared) == "8 MiB"
    program.does("destroy", pool)
    assert used(shared) == "4 MiB"
    program.does("verify", key, 7, NULL)
    assert program.does("verdict") == [0]
    program.does("free", key, NULL)
    program.does("wait")
    assert used(shared) == "0 B"


def test_the_current_pool_serves(program: Program) -> None:
    pool = program.does("pool", NO_HANDLES)[0]
    program.does("current", pool)
    key, address = allocated(program, 3 * MIB)
    assert program.does("amounts", pool) == [4 * MIB, 4 * MIB, 3 * MIB, 3 * MIB]
    assert program.does("facts", key) == [address, 3 * MIB, address, 3 * MIB, pool, 0]


def test_attributes_name_the_allocation_and_not_the_range(program: Program) -> None:
    first, begin = allocated(program, 1000)
    second, address = allocated(program, 1000)
    assert address == begin + 2 * UNIT
    for key, base in ((first, begin), (second, address)):
        assert program.does("facts", key)[:4] == [base, 1000] * 2
    assert program.says("export", second) == INVALID
    assert program.says("retain", second) == INVALID


def test_errors_are_the_drivers(program: Program) -> None:
    assert program.says("alloc", 0, NULL, CURRENT) == INVALID
    assert program.says("alloc", (1 << 63) - 1, NULL, CURRENT) == OUT_OF_MEMORY
    assert program.says("alloc", 16 * MIB + 1, NULL, CURRENT) == OUT_OF_MEMORY
    key, _ = allocated(program, 4 * MIB)
    assert program.says("inside", key) == INVALID
    program.does("free", key, NULL)
    assert program.says("free", key, NULL) == INVALID
    assert program.says("at_once", key) == INVALID
    program.does("wait")
    assert program.says("free", key, NULL) == INVALID


def test_each_way_to_free_takes_both_kinds_of_memory(shared: Daemon, program: Program) -> None:
    key, _ = allocated(program, 4 * MIB)
    program.does("at_once", key)
    plain = program.does("plain", 4 * MIB)[0]
    program.does("free", plain, NULL)
    assert used(shared) == "0 B"


def test_a_free_at_once_waits_for_the_work(program: Program) -> None:
    key, _ = allocated(program, 4 * MIB)
    begin = time.monotonic()
    program.does("spin", LONG_MS, NULL)
    program.does("at_once", key)
    assert time.monotonic() - begin >= LONG_MS / 1000


def test_captures_are_the_drivers(shared: Daemon, program: Program) -> None:
    """The simulated driver's nodes have addresses where nothing is."""
    stream, other = (program.does("stream")[0] for _ in range(2))
    key, _ = allocated(program, 4 * MIB, stream)
    program.does("free", key, stream)
    before = program.does("amounts", CURRENT)
    program.does("capture", stream)
    allocated(program, 4 * MIB, stream)
    assert program.does("amounts", CURRENT) == before
    live, _ = allocated(program, 4 * MIB, other)  # which is not captured
    assert program.says("free", live, stream) == INVALID
    program.does("done", stream)
    program.does("free", live, other)
    program.does("wait")
    assert used(shared) == "0 B"


@pytest.mark.parametrize("kind", ["exportable", "limited", "shared", "off"])
def test_what_gdev_cannot_serve_is_the_drivers(
    two_vgpus: Daemon, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts, and stays on the GPU."""
    if kind == "off":
        monkeypatch.setenv("GDEV_SWAP", "0")
    with started(two_vgpus) as program:
        pool = (
            program.does("limited", 64 * MIB)[0]
            if kind == "limited"
            else program.does("pool", BY_DESCRIPTOR if kind == "exportable" else NO_HANDLES)[0]
        )
        if kind == "shared":
            program.does("share", pool)
        key, _ = allocated(program, 8 * MIB, NULL, pool)
        assert used(two_vgpus) == "8 MiB"
        assert program.does("amounts", pool) == [0] * 4  # the simulated driver does not count
        two_vgpus.must("pause", str(program.process.pid))
        time.sleep(0.2)
        assert used(two_vgpus) == "8 MiB" and "8 MiB" in two_vgpus.must("gpu", "list")
        two_vgpus.must("resume", str(program.process.pid))
        program.does("free", key, NULL)
        assert used(two_vgpus) == "0 B"


def test_turns_keep_addresses_and_bytes(two_vgpus: Daemon) -> None:
    """Two programs whose pools together exceed the GPU."""
    with started(two_vgpus, "a") as a, started(two_vgpus, "b") as b:
        keys = {}
        for program, value in ((a, 1), (b, 2)):
            kept(program)
            keys[program] = [allocated(program, size)[0] for size in (30 * MIB, 10 * MIB, 100)]
            for key in keys[program]:
                program.does("fill", key, value, NULL)
        for _ in range(4):
            for program, value in ((a, 1), (b, 2)):
                for key in keys[program]:
                    program.does("verify", key, value, NULL)
                assert program.does("verdict") == [0]
                program.does("free", keys[program].pop(1), NULL)
                keys[program].insert(1, allocated(program, 10 * MIB)[0])
                program.does("fill", keys[program][1], value, NULL)


def test_memory_is_freed_and_given_back_while_a_program_is_off(two_vgpus: Daemon) -> None:
    with started(two_vgpus) as a, started(two_vgpus, "b") as b:
        kept(a)
        key, address = allocated(a, 40 * MIB)
        live, _ = allocated(a, 4 * MIB)
        a.does("fill", live, 3, NULL)
        two_vgpus.must("pause", str(a.process.pid))
        wait_for(two_vgpus, a, "off, paused")
        a.does("free", key, NULL)
        assert allocated(a, 40 * MIB)[1] == address  # the addresses stay, so it need not wait
        a.does("free", key + 2, NULL)
        a.does("wait")
        a.does("trim", CURRENT, 0)
        assert used(two_vgpus) == "4 MiB"
        allocated(b, 60 * MIB)
        two_vgpus.must("resume", str(a.process.pid))
        a.does("verify", live, 3, NULL)
        assert a.does("verdict") == [0]


@pytest.mark.parametrize("how", ["sync_memops", "share"])
def test_what_others_reach_stays_on_the_gpu(two_vgpus: Daemon, how: str) -> None:
    with started(two_vgpus) as a:
        pool = a.does("pool", NO_HANDLES)[0]
        key, _ = allocated(a, 40 * MIB, NULL, pool)
        other, _ = allocated(a, 8 * MIB)
        a.does(how, pool if how == "share" else key)
        two_vgpus.must("pause", str(a.process.pid))
        wait_for(two_vgpus, a, "off, paused")
        assert state(two_vgpus)[a.process.pid][-2:] == ["8", "MiB"]  # on the host
        two_vgpus.must("resume", str(a.process.pid))
        a.does("free", key, NULL)
        a.does("free", other, NULL)
        a.does("wait")
        assert used(two_vgpus) == "0 B"


def test_memory_outlives_the_context_in_which_it_was_made(two_vgpus: Daemon) -> None:
    """If the device has another one; turns copy it there."""
    with started(two_vgpus) as a, started(two_vgpus, "b") as b:
        a.does("context")
        key, _ = allocated(a, 40 * MIB)
        a.does("fill", key, 5, NULL)
        cached, _ = allocated(a, 4 * MIB)
        a.does("free", cached, NULL)
        a.does("destroy_context")
        allocated(b, 40 * MIB)
        a.does("verify", key, 5, NULL)
        assert a.does("verdict") == [0]
        a.does("free", key, NULL)
        a.does("wait")
        assert used(two_vgpus) == "0 B"


def test_the_end_of_the_last_context_frees_all(shared: Daemon, program: Program) -> None:
    kept(program)
    allocated(program, 8 * MIB)
    program.does("free", allocated(program, 4 * MIB)[0], NULL)
    program.does("reset")
    assert used(shared) == "0 B"
    assert program.does("amounts", CURRENT)[::2] == [0, 0]
    allocated(program, 16 * MIB)


def test_a_forked_child_has_pools_of_its_own(shared: Daemon, program: Program) -> None:
    kept(program)
    allocated(program, 4 * MIB)
    program.does("free", allocated(program, 4 * MIB)[0], NULL)
    program.does("fork")
    program.does("init")
    assert program.does("amounts", CURRENT) == [0] * 4
    key, _ = allocated(program, 8 * MIB)
    assert program.says("alloc", 1, NULL, CURRENT) == OUT_OF_MEMORY
    program.does("free", key, NULL)
    program.does("trim", CURRENT, 0)


def random_steps(program: Program, chance: random.Random, streams: int, steps: int) -> None:
    """Random calls in several streams against a model: no bytes of others, and exact amounts."""
    pools = [CURRENT, program.does("pool", NO_HANDLES)[0]]
    for pool in pools:
        program.does("set", pool, THRESHOLD, chance.choice([0, 4 * MIB, EVERYTHING]))
    of = [program.does("stream")[0] for _ in range(streams)] + [NULL]
    live: dict[int, tuple[int, int, int, int, int]] = {}  # address, size, value, stream, pool
    for step in range(steps):
        what = chance.random()
        stream = chance.choice(of)
        if what < 0.4:
            size = chance.choice([1, 1000, 4096, 300_000, MIB, 3 * MIB, 5 * MIB])
            pool = chance.choice(pools)
            answer = program.says("alloc", size, stream, pool)
            if answer == OUT_OF_MEMORY:
                continue
            key, address = (int(word) for word in answer.split()[1:])
            for other, other_size, *_ in live.values():
                assert address + size <= other or other + other_size <= address
            value = chance.randrange(256)
            program.does("fill", key, value, stream)
            live[key] = (address, size, value, stream, pool)
        elif what < 0.75 and live:
            key = chance.choice([*live])
            address, size, value, own, pool = live.pop(key)
            program.does("verify", key, value, own)
            other = own
            if chance.random() < 0.3:
                other = stream
                program.does("after", other, own)
            program.does("free", key, other)
        elif what < 0.85:
            program.does("spin", chance.randrange(4), stream)
        elif what < 0.93:
            program.does("sync", stream)
        elif what < 0.95:
            program.does("trim", chance.choice(pools), chance.choice([0, 2 * MIB]))
        elif what < 0.97:
            assert program.does("verdict") == [0]
        for pool in pools if step % 10 == 0 else ():
            sizes = [one[1] for one in live.values() if one[4] == pool]
            in_use = sum((size + UNIT - 1) // UNIT * UNIT for size in sizes)
            reserved, _, counted, _ = program.does("amounts", pool)
            assert counted == in_use <= reserved
    for key, (_, _, value, own, _) in live.items():
        program.does("verify", key, value, own)
        program.does("free", key, own)
    assert program.does("verdict") == [0]
    for pool in pools:
        program.does("set", pool, THRESHOLD, 0)
    program.does("wait")
    assert [program.does("amounts", pool)[::2] for pool in pools] == [[0, 0]] * 2


def test_random_operations_in_several_streams_match_a_model(shared: Daemon) -> None:
    chance = random.Random(seed_of_test())
    with started(shared) as program:
        random_steps(program, chance, streams=3, steps=1500)
        assert used(shared) == "0 B"


def test_random_operations_of_programs_that_take_turns_match_a_model(two_vgpus: Daemon) -> None:
    chance = random.Random(seed_of_test())

    def use(vgpu: str, seed: int) -> None:
        with started(two_vgpus, vgpu) as program:
            key = program.does("plain", 30 * MIB)[0]
            program.does("fill", key, 9, NULL)
            random_steps(program, random.Random(seed), streams=2, steps=200)
            program.does("verify", key, 9, NULL)
            assert program.does("verdict") == [0]

    with concurrent.futures.ThreadPoolExecutor() as threads:
        users = [threads.submit(use, name, chance.randrange(1 << 32)) for name in ("a", "b")]
        for one in users:
            one.result()
    for name in ("a", "b"):
        wait_until_used(two_vgpus, "0 B", name)
