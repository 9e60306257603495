"""Where memory that is off the GPU lies: the host's memory, and files."""

from __future__ import annotations

import concurrent.futures
import resource
import time
from pathlib import Path

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program, seed_of_test
from .simulated_gpu import TIMEOUT_S, Gpu
from .test_swap import MIB, started, wait_for


@pytest.fixture
def shared(daemon: Daemon) -> Daemon:
    """A daemon with two virtual GPUs, each with a limit of all the GPU's 64 MiB."""
    for name in ("a", "b"):
        daemon.must("vgpu", "add", name, "--memory", "64MiB")
    return daemon


def test_what_the_host_could_not_hold_is_refused(shared: Daemon) -> None:
    """Two segments of 64 MiB: each program takes whole ones."""
    shared.must("gpu", "set", "--host-memory", f"{(128 << 20) - 4096}")
    with started(shared, "a", 40, 1) as a, shared.program("b") as b:
        b.does("init")
        assert b.says("alloc", 40 * MIB) == OUT_OF_MEMORY
        b.does("free", b.does("alloc", 24 * MIB)[0])
        shared.must("gpu", "set", "--host-memory", "128MiB")
        key = b.does("alloc", 40 * MIB)[0]
        b.does("fill", key, 2, 40 * MIB)
        assert a.does("check", 0, 1, 40 * MIB) == [1]
        assert b.does("check", key, 2, 40 * MIB) == [1]


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_full_host_keeps_the_program_on_the_gpu(shared: Daemon, is_anew: bool) -> None:
    """Also if the daemon is a new one: programs say what they hold of the host."""
    with (
        started(shared, "a", 40, 1) as a,
        started(shared, "b", 40, 2) as b,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        shared.must("gpu", "set", "--host-memory", "64MiB")
        if is_anew:
            shared.kill()
            shared.start()
        waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
        wait_for(shared, b, "no host memory")
        assert not waiting.done()
        assert b.does("check", 0, 2, 40 * MIB) == [1]
        shared.must("gpu", "set", "--host-memory", "128MiB")
        assert waiting.result(TIMEOUT_S) == [1]


def test_a_file_takes_what_the_host_has_no_room_for(
    shared: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    shared.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "128MiB")
    with started(shared, "a", 40, 1) as a, started(shared, "b", 40, 2) as b:
        for value in range(3):
            assert a.does("check", 0, 1, 40 * MIB) == [1]
            assert b.does("check", 0, 2 + value, 40 * MIB) == [1]
            b.does("fill", 0, 3 + value, 40 * MIB)
        used = {one.name for one in tmp_path.iterdir()}
        assert used <= {"gpu", "socket", "socket.lock", "socket.state"}  # the files have no names


def test_files_count_only_for_programs_that_have_a_folder(shared: Daemon) -> None:
    shared.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "128MiB")
    with started(shared, "a", 40, 1), shared.program("b") as b:
        b.does("init")
        assert b.says("alloc", 40 * MIB) == OUT_OF_MEMORY


@pytest.mark.parametrize("with_files", ["a", "b"])
def test_memory_is_kept_for_programs_that_have_no_folder(
    shared: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_files: str
) -> None:
    """Whichever leaves the GPU first."""
    shared.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "40MiB")

    def start(vgpu: str, value: int) -> Program:
        monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path) if vgpu == with_files else "")
        return started(shared, vgpu, 40, value)

    with start("a", 1) as a, start("b", 2) as b:
        for _ in range(3):
            assert a.does("check", 0, 1, 40 * MIB) == [1]
            assert b.does("check", 0, 2, 40 * MIB) == [1]


def test_a_full_disk_keeps_the_program_on_the_gpu(
    shared: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's blocks are allocated before anything leaves the GPU."""
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    shared.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "128MiB")
    with (
        started(shared, "a", 40, 1) as a,
        started(shared, "b", 40, 2) as b,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        resource.prlimit(b.process.pid, resource.RLIMIT_FSIZE, (30 * MIB, 30 * MIB))
        waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
        time.sleep(0.5)
        assert not waiting.done() and "no host memory" in shared.must("ps")
        assert b.does("check", 0, 2, 40 * MIB) == [1]
        shared.must("gpu", "set", "--host-memory", "128MiB")
        assert waiting.result(TIMEOUT_S) == [1]


def test_free_places_are_as_in_a_naive_model(gpu: Gpu) -> None:
    process = gpu.run("free_places", str(seed_of_test()), "50000", under_gdev=False)
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize("where", ["memory", "files"])
def test_places_that_are_given_back_are_merged(
    shared: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Small allocations, then a large one in their place: the host needs no more for it."""
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    host, files = {"memory": ("64MiB", "0"), "files": ("0", "40MiB")}[where]
    shared.must("gpu", "set", "--host-memory", host, "--swap-files", files)
    with shared.program("a") as a:
        a.does("init")

        def go_off_and_on() -> None:
            for what, words in (("pause", "off, paused"), ("resume", " on ")):
                shared.must(what, str(a.process.pid))
                if what == "resume":
                    a.does("fill", key, 7, MIB)  # it comes back for that
                wait_for(shared, a, words)

        keys = [a.does("alloc", 4 * MIB)[0] for _ in range(10)]
        key = keys[0]
        go_off_and_on()
        for one in keys:
            a.does("free", one)
        key = a.does("alloc", 40 * MIB)[0]
        a.does("fill", key, 7, 40 * MIB)
        go_off_and_on()
        assert a.does("check", key, 7, 40 * MIB) == [1]
