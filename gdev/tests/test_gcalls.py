"""The g* calls (gdev/gdev.h), with and without gdev: success, each error, order, ends."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Iterator

import pytest

from .gcalls import INVALID, NOT_OPEN, launch, numbers, put, start, stored
from .gdev_daemon import Daemon, Program
from .segments import MIB, error, free_bytes, wait_until_free, wait_until_gone
from .simulated_gpu import BUILD, Gpu

SPIN_NS = 300_000_000
LONG_SPIN_NS = 2_000_000_000  # for what must be seen before it ends
QUERY_TOTAL, QUERY_FREE, QUERY_CAPABILITY, QUERY_MULTIPROCESSORS = range(1, 5)
CHUNK_BYTES = 1


@pytest.fixture(params=["gdev", "alone"])
def program(request: pytest.FixtureRequest, shared: Daemon) -> Iterator[Program]:
    """A program with handle 1, under gdev and without."""
    with start(shared, "a" if request.param == "gdev" else None) as made:
        made.does("gopen", 0)
        yield made


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 100_000), (100, 77), (64, 256)])
@pytest.mark.parametrize("under_gdev", [True, False])
def test_a_c_program_adds_matrices(
    shared: Daemon, rows: int, columns: int, under_gdev: bool
) -> None:
    gpu = shared.gpu
    done = gpu.run(
        "matrix_addition",
        gpu.kernels,
        str(rows),
        str(columns),
        under_gdev=under_gdev,
        env={"GDEV_SOCKET": str(shared.socket), "GDEV_VGPU": "a", "GDEV_DRIVER": str(gpu.driver)},
    )
    assert done.stdout == f"0 of {rows * columns} sums are wrong\n", done.stderr


def test_a_source_may_include_the_headers_of_gpufs_and_gdev(gpu: Gpu) -> None:
    done = gpu.run("both_headers", under_gdev=False)
    assert done.stdout == f"{errno.EBADF}\n", done.stderr


def test_handles(program: Program) -> None:
    assert program.does("gdevice_count", "_") == [1]
    assert program.says("gopen", 1) == error(errno.ENODEV)
    assert program.says("gopen", -1) == error(errno.ENODEV)
    assert program.does("gopen", 0) == [2]
    program.does("gclose", 1)
    assert program.says("gclose", 1) == NOT_OPEN
    assert program.does("gopen", 0) == [3]  # not the closed one's number
    program.does("gbarrier", 2)


def test_without_a_driver_there_is_no_gpu(gpu: Gpu) -> None:
    environment = gpu.environment(under_gdev=False)
    del environment["LD_LIBRARY_PATH"]
    with Program([str(BUILD / "tests" / "gcalls")], environment) as alone:
        for call in ("gdevice_count _", "gopen 0", "guse -1"):
            assert alone.says(call) == error(errno.ENODEV)
        assert alone.says("gclose", 1) == NOT_OPEN


def test_without_the_daemon_gopen_says_so(shared: Daemon) -> None:
    with start(shared) as made:
        shared.kill()
        assert made.says("gopen", 0) == error(errno.ENOTCONN)


def test_every_call_refuses_a_handle_that_is_not_open(program: Program) -> None:
    for call in (
        *("gclose", "guse", "gbarrier"),
        *("gmalloc {} _ 1", "gfree {} 1", "gmalloc_dma {} _ 1", "gfree_dma {} 1"),
        *("gvirtget {} 1 _", "gmemcpy_to_device {} 1 1 1", "gmemcpy_from_device {} 1 1 1"),
        *("gmemcpy {} 1 1 1", "gmemcpy_to_device_async {} 1 1 1 _", "gunref {} 1"),
        *("gmemcpy_from_device_async {} 1 1 1 _", "gmemcpy_async {} 1 1 1 _"),
        *("glaunch {} _ _", "gsync {} 1 -1", "gquery {} 1 _", "gtune {} 1 0"),
        *("gexport {} 1 _", "gref {} " + 72 * "00" + " _"),
    ):
        line = call if "{}" in call else call + " {}"
        assert program.says(line.format(7)) == NOT_OPEN, line


def test_every_call_refuses_null(program: Program) -> None:
    address = stored(program, "gmalloc", 1, "_", 64)
    host = stored(program, "host", 64)
    program.does("kernel", "tests", "gdev_spin", 1, 1, 0)
    for call in (
        *("gdevice_count null", "gmalloc 1 null 1", "gmalloc_dma 1 null 1"),
        *(f"gvirtget 1 {host} null", "gquery 1 1 null", "glaunch 1 null _"),
        *(f"gexport 1 {address} null", "gref 1 null _", "gref 1 " + 72 * "00" + " null"),
        *(f"gmemcpy_to_device 1 {address} 0 1", f"gmemcpy_to_device 1 0 {host} 1"),
        *(f"gmemcpy_from_device 1 0 {address} 1", f"gmemcpy_from_device 1 {host} 0 1"),
        *(f"gmemcpy 1 0 {address} 1", f"gmemcpy 1 {address} 0 1"),
    ):
        assert program.says(call) == INVALID, call
    # An id may be missing.
    program.does("glaunch", 1, "_", "null")
    program.does("gmemcpy_async", 1, address, address, 64, "null")
    assert program.says("gsync", 1, 1, 0) == INVALID  # nothing stored one


def test_memory(program: Program) -> None:
    assert program.says("gmalloc", 1, "_", 0) == INVALID
    assert program.says("gmalloc", 1, "_", 1 << 40) == error(errno.ENOMEM)
    address = stored(program, "gmalloc", 1, "_", 3 * MIB)
    put(program, address, 5, 1000)
    assert numbers(program, address, 1000) == list(range(5, 1005))
    assert program.says("gfree", 1, address + 4) == INVALID
    program.does("gopen", 0)
    assert program.says("gfree", 2, address) == INVALID
    assert numbers(program, address, 3, handle=2) == [5, 6, 7]  # a GPU has one address space
    program.does("gfree", 1, address)
    assert program.says("gfree", 1, address) == INVALID


def test_pinned_memory(program: Program) -> None:
    assert program.says("gmalloc_dma", 1, "_", 0) == INVALID
    assert program.says("gmalloc_dma", 1, "_", 1 << 60) == error(errno.ENOMEM)
    buffer = stored(program, "gmalloc_dma", 1, "_", 4096)
    on_device = stored(program, "gvirtget", 1, buffer + 8, "_")
    program.does("gsync", 1, launch(program, "gdev_fill", on_device, 2, -9), -1)
    assert program.does("peek", buffer + 8, 2) == [9, 9]
    for outside in (buffer - 1, buffer + 4096, 0):
        assert program.says("gvirtget", 1, outside, "_") == INVALID
    assert program.says("gfree_dma", 1, buffer + 8) == INVALID
    program.does("gfree_dma", 1, buffer)
    assert program.says("gfree_dma", 1, buffer) == INVALID


def test_copies_end_with_their_allocation(program: Program) -> None:
    address = stored(program, "gmalloc", 1, "_", 4096)
    other = stored(program, "gmalloc", 1, "_", 8192)
    host = stored(program, "host", 8192)
    program.does("gmemcpy_to_device", 1, address + 96, host, 4000)
    for call in (
        f"gmemcpy_to_device 1 {address + 96} {host} 4001",
        f"gmemcpy_from_device 1 {host} {address} 4097",
        f"gmemcpy 1 {address} {other} 4097",
        f"gmemcpy 1 {other} {address} 4097",
        f"gmemcpy_to_device_async 1 {address} {host} {(1 << 63) - 1} _",
        f"gmemcpy_from_device_async 1 {host} {address + 1} 4096 _",
        f"gmemcpy_async 1 {address} {other} 4097 _",
    ):
        assert program.says(call) == INVALID, call
    program.does("gmemcpy_from_device", 1, host, address, 0)


@pytest.mark.parametrize("chunk", [0, 4096, 3 * 4096, 1 << 30])
def test_copies_in_chunks(program: Program, chunk: int) -> None:
    count = 5000  # 20,000 bytes: no multiple of a chunk
    program.does("gtune", 1, CHUNK_BYTES, chunk)
    first = stored(program, "gmalloc", 1, "_", 4 * count)
    second = stored(program, "gmalloc", 1, "_", 4 * count)
    put(program, first, 1, count)
    program.does("gmemcpy", 1, second, first, 4 * count)
    assert numbers(program, second, count) == list(range(1, count + 1))


def test_a_chunk_is_one_passage_of_the_gate(shared: Daemon) -> None:
    with start(shared) as made:
        made.does("gopen", 0)
        address = stored(made, "gmalloc", 1, "_", 65536)
        before = copies(shared)
        put(made, address, 0, 16384)
        made.does("gtune", 1, CHUNK_BYTES, 4096)
        put(made, address, 0, 16384)
        assert copies(shared) - before == 1 + 16


def copies(daemon: Daemon) -> int:
    """Returns how many copies to the device gdev has counted."""
    found = json.loads(daemon.must("top", "--json", "--interval", "0.1"))
    return int(sum(one["to_device"] for one in found["programs"]))


def test_settings_that_do_not_exist(program: Program) -> None:
    for type_, value in ((0, 0), (2, 1), (CHUNK_BYTES, 4095), (CHUNK_BYTES, 4097)):
        assert program.says("gtune", 1, type_, value) == INVALID


def test_facts(program: Program) -> None:
    total, free = (stored(program, "gquery", 1, which, "_") for which in (1, 2))
    assert total in (16 * MIB, 64 * MIB) and free <= total  # the virtual GPU, or the GPU
    program.does("gmalloc", 1, "_", 4 * MIB)
    assert stored(program, "gquery", 1, QUERY_FREE, "_") == free - 4 * MIB
    assert stored(program, "gquery", 1, QUERY_CAPABILITY, "_") == 91
    assert stored(program, "gquery", 1, QUERY_MULTIPROCESSORS, "_") == 1
    for unknown in (0, 5):
        assert program.says("gquery", 1, unknown, "_") == INVALID


def test_the_limit_is_that_of_the_virtual_gpu(shared: Daemon) -> None:
    with start(shared) as made:
        made.does("gopen", 0)
        assert stored(made, "gquery", 1, QUERY_TOTAL, "_") == 16 * MIB
        made.does("gmalloc", 1, "_", 16 * MIB)
        assert made.says("gmalloc", 1, "_", 2 * MIB) == error(errno.ENOMEM)


def test_asynchronous_work_keeps_its_order(program: Program) -> None:
    address = stored(program, "gmalloc", 1, "_", 4000)
    pinned = stored(program, "gmalloc_dma", 1, "_", 4000)
    program.does("poke", pinned, 100, 1000)
    ids = [launch(program, "gdev_spin", LONG_SPIN_NS)]
    ids += program.does("gmemcpy_to_device_async", 1, address, pinned, 4000, "_")
    ids.append(launch(program, "gdev_add", address, 1000, -7))
    ids += program.does("gmemcpy_async", 1, address + 400, address, 400, "_")
    out = stored(program, "gmalloc_dma", 1, "_", 4000)
    program.does("poke", out, 0, 1000)
    ids += program.does("gmemcpy_from_device_async", 1, out, address, 4000, "_")
    assert ids == [1, 2, 3, 4, 5]
    assert program.says("gsync", 1, 5, 0) == error(errno.ETIMEDOUT)
    assert program.does("peek", out, 2) == [0, 1]  # nothing waited for the kernel
    assert program.says("gsync", 1, 5, SPIN_NS // 100) == error(errno.ETIMEDOUT)
    program.does("gsync", 1, 5, -1)
    expected = [*range(107, 207), *range(107, 207), *range(307, 1107)]
    assert program.does("peek", out, 1000) == expected
    for done in ids:
        program.does("gsync", 1, done, 0)
    for none in (0, 6, -1):
        assert program.says("gsync", 1, none, 0) == INVALID


def test_gsync_waits_no_longer_than_it_must(program: Program) -> None:
    launch(program, "gdev_spin", 1_000_000)
    program.does("gsync", 1, 1, (1 << 63) - 1)


@pytest.mark.parametrize("call", ["gbarrier 1", "gclose 1"])
def test_it_waits_for_all_work(program: Program, call: str) -> None:
    program.does("gopen", 0)
    pinned = stored(program, "gmalloc_dma", 2, "_", 64)  # outlives handle 1
    address = stored(program, "gmalloc", 1, "_", 64)
    launch(program, "gdev_spin", SPIN_NS)
    launch(program, "gdev_fill", address, 16, -3)
    program.does("gmemcpy_from_device_async", 1, pinned, address, 64, "null")
    program.does(call)
    assert program.does("peek", pinned, 16) == 16 * [3]


@pytest.mark.parametrize("what", ["memory", "pinned"])
def test_memory_is_freed_after_the_work_that_uses_it(program: Program, what: str) -> None:
    made = stored(program, "gmalloc_dma" if what == "pinned" else "gmalloc", 1, "_", 64)
    launch(program, "gdev_spin", SPIN_NS)
    id_ = launch(program, "gdev_fill", made, 16, -3)
    program.does("gfree_dma" if what == "pinned" else "gfree", 1, made)
    program.does("gsync", 1, id_, 0)


def test_handles_do_not_wait_for_each_other(program: Program) -> None:
    program.does("gopen", 0)
    address = stored(program, "gmalloc", 2, "_", 64)
    id_ = launch(program, "gdev_spin", LONG_SPIN_NS)
    put(program, address, 4, 16, handle=2)
    program.does("gbarrier", 2)
    assert program.says("gsync", 1, id_, 0) == error(errno.ETIMEDOUT)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("tests gdev_spin 1 1 0", 0),
        ("null gdev_spin 1 1 0", errno.EINVAL),
        ("tests null 1 1 0", errno.EINVAL),
        ("tests gdev_spin 0 1 0", errno.EINVAL),
        ("tests gdev_spin 1 0 0", errno.EINVAL),
        ("tests gdev_spin 1 1", errno.EINVAL),
        ("tests gdev_spin 1 1 0 0", errno.EINVAL),
        ("tests gdev_spin 1 1 null", errno.EINVAL),
        ("tests gdev_spin 1 1 none", errno.EINVAL),
        ("no-kernel gdev_spin 1 1 0", errno.ENOEXEC),
        ("tests gdev_spi 1 1 0", errno.ENOENT),
    ],
)
def test_kernels(program: Program, description: str, expected: int) -> None:
    for _ in range(2):  # with the image loaded, too
        program.does("kernel", *description.split())
        assert program.says("glaunch", 1, "_", "_").startswith(
            "ok" if expected == 0 else error(expected)
        )
        launch(program, "gdev_spin", 0)


def test_a_handle_is_used_by_several_threads(program: Program) -> None:
    program.does("threads", 1, 50)


def test_a_handle_is_closed_while_threads_use_it(program: Program) -> None:
    program.does("racing_close", 1)
    assert program.says("gbarrier", 1) == NOT_OPEN


def test_shared_memory_of_the_same_header(shared: Daemon) -> None:
    with start(shared) as made:
        made.does("gopen", 0)
        made.does("guse", 1)
        (segment,) = made.does("gshmget", 1, 4096, 0o1600)
        address = stored(made, "gshmat", segment, "_", 0)
        put(made, address, 8, 100)
        assert numbers(made, address, 100) == list(range(8, 108))
        made.does("gshmdt", address)
        made.does("guse", -1)
        assert made.says("gshmat", segment, "_", 0) == error(errno.ENODEV)
    with start(shared, None) as alone:
        assert alone.says("gshmget", 1, 4096, 0o1600) == error(errno.ENOSYS)


@pytest.mark.parametrize("vgpu", ["a", None])
@pytest.mark.parametrize("size", [4096, 3 * MIB])
def test_memory_of_another_process(shared: Daemon, vgpu: str | None, size: int) -> None:
    with start(shared, vgpu) as owner, start(shared, vgpu) as user:
        owner.does("gopen", 0)
        user.does("gopen", 0)
        memory = stored(owner, "gmalloc", 1, "_", size)
        put(owner, memory, 1, 100)
        name = owner.says("gexport", 1, memory, "_").split()[1]
        address = stored(user, "gref", 1, name, "_")
        assert numbers(user, address, 100) == list(range(1, 101))
        user.does("gsync", 1, launch(user, "gdev_add", address, 100, -10), -1)
        assert numbers(owner, memory, 100) == list(range(11, 111))
        host = stored(user, "host", size)
        assert user.says("gfree", 1, address) == INVALID
        assert user.says("gexport", 1, address, "_") == INVALID
        assert user.says("gmemcpy_from_device", 1, host, address + 4, 4 * MIB) == INVALID
        user.does("gunref", 1, address)
        assert user.says("gunref", 1, address) == INVALID
        assert owner.says("gref", 1, name, "_") == INVALID
        assert owner.says("gunref", 1, memory) == INVALID
        assert owner.says("gexport", 1, memory + 4, "_") == INVALID
        assert owner.says("gexport", 1, 0, "_") == INVALID


def test_memory_is_attached_as_often_as_it_is_detached(shared: Daemon) -> None:
    with start(shared) as owner, start(shared) as user:
        owner.does("gopen", 0)
        user.does("gopen", 0)
        memory = stored(owner, "gmalloc", 1, "_", 2 * MIB)
        put(owner, memory, 1, 10)
        name = owner.says("gexport", 1, memory, "_").split()[1]
        first, second = (stored(user, "gref", 1, name, "_") for _ in range(2))
        user.does("gunref", 1, first)
        owner.does("gfree", 1, memory)  # it stays for those that have it
        assert numbers(user, second, 10) == list(range(1, 11))
        assert user.says("gref", 1, 2 * name[:72], "_") == INVALID
        user.does("gclose", 1)
    wait_until_free(shared)


def test_names_that_are_none(shared: Daemon) -> None:
    with start(shared) as owner, start(shared) as user, start(shared, None) as alone:
        for one in (owner, user, alone):
            one.does("gopen", 0)
        memory = stored(owner, "gmalloc", 1, "_", 3 * MIB)
        name = owner.says("gexport", 1, memory, "_").split()[1]
        assert user.says("gref", 1, 72 * "00", "_") == INVALID
        for claimed in (0, 1 << 40, (1 << 64) - 1):
            wrong = name[:128] + claimed.to_bytes(8, "little").hex()
            assert user.says("gref", 1, wrong, "_") == INVALID
        assert alone.says("gref", 1, name, "_") in (INVALID, error(errno.ENXIO))
        owner.does("gfree", 1, memory)
        assert user.says("gref", 1, name, "_") == INVALID
        kept = stored(owner, "gmalloc", 1, "_", 3 * MIB)
        name = owner.says("gexport", 1, kept, "_").split()[1]
        owner.process.kill()
        owner.process.wait()
        assert user.says("gref", 1, name, "_") == error(errno.ENXIO)


def test_a_program_that_dies_leaves_nothing(shared: Daemon) -> None:
    before = free_bytes(shared)
    with start(shared) as owner, start(shared) as user:
        for one in (owner, user):
            one.does("gopen", 0)
            one.does("gopen", 0)
        memory = stored(owner, "gmalloc", 1, "_", 4 * MIB)
        name = owner.says("gexport", 1, memory, "_").split()[1]
        stored(user, "gref", 1, name, "_")
        stored(user, "gmalloc", 2, "_", 4 * MIB)
        stored(user, "gmalloc_dma", 2, "_", 4 * MIB)
        launch(user, "gdev_spin", 1_000_000_000, handle=2)
        for one in (user, owner):
            one.process.send_signal(signal.SIGKILL)
            one.process.wait()
            wait_until_gone(shared, one.process.pid)
    wait_until_free(shared, before)


def test_a_program_that_ends_with_open_handles_leaves_nothing(shared: Daemon) -> None:
    before = free_bytes(shared)
    with start(shared) as made:
        made.does("gopen", 0)
        stored(made, "gmalloc", 1, "_", 4 * MIB)
        launch(made, "gdev_spin", 1_000_000)
        assert made.end() == ""
        assert made.process.returncode == 0
    wait_until_free(shared, before)


def test_closing_frees_what_the_handle_had(program: Program) -> None:
    program.does("gopen", 0)
    free = stored(program, "gquery", 2, QUERY_FREE, "_")
    for _ in range(3):
        stored(program, "gmalloc", 1, "_", 2 * MIB)
    assert stored(program, "gquery", 2, QUERY_FREE, "_") == free - 6 * MIB
    program.does("gclose", 1)
    assert stored(program, "gquery", 2, QUERY_FREE, "_") == free


def test_a_forked_child_has_no_handles(program: Program) -> None:
    program.does("fork")
    assert program.says("gbarrier", 1) == NOT_OPEN
    assert program.says("gclose", 1) == NOT_OPEN
