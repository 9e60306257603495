"""Where memory that is off the GPU lies: the host's memory, and files."""

from __future__ import annotations

import concurrent.futures
import resource
import time
from pathlib import Path

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, Program, seed_of_test
from .simulated_gpu import TIMEOUT_S, Gpu
from .test_swap import MIB, started, state, wait_for


def test_what_the_host_could_not_hold_is_refused(two_vgpus: Daemon) -> None:
    """Two segments of 64 MiB: each program takes whole ones."""
    two_vgpus.must("gpu", "set", "--host-memory", f"{(128 << 20) - 4096}")
    with started(two_vgpus, "a", 40, 1) as a, two_vgpus.program("b") as b:
        b.does("init")
        assert b.says("alloc", 40 * MIB) == OUT_OF_MEMORY
        b.does("free", b.does("alloc", 24 * MIB)[0])
        two_vgpus.must("gpu", "set", "--host-memory", "128MiB")
        key = b.does("alloc", 40 * MIB)[0]
        b.does("fill", key, 2, 40 * MIB)
        assert a.does("check", 0, 1, 40 * MIB) == [1]
        assert b.does("check", key, 2, 40 * MIB) == [1]


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_full_host_keeps_the_program_on_the_gpu(two_vgpus: Daemon, is_anew: bool) -> None:
    """Also if the daemon is a new one: programs say what they hold of the host."""
    two_vgpus.must(
        "vgpu", "set", "b", "--memory", "40MiB"
    )  # more: b prepares for a GPU that fills up
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        started(two_vgpus, "b", 40, 2) as b,
    ):
        two_vgpus.must("gpu", "set", "--host-memory", "64MiB")
        if is_anew:
            two_vgpus.kill()
            two_vgpus.start()
        waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
        wait_for(two_vgpus, b, "no host memory")
        assert not waiting.done()
        assert b.does("check", 0, 2, 40 * MIB) == [1]
        two_vgpus.must("gpu", "set", "--host-memory", "128MiB")
        assert waiting.result(TIMEOUT_S) == [1]


def test_a_folder_that_can_hold_no_files_is_named(two_vgpus: Daemon) -> None:
    with two_vgpus.program("a", env={"GDEV_SWAP_FOLDER": "/nonexistent"}) as one:
        one.does("init")
        one.does("alloc", 2 * MIB)
        said = "GDEV_SWAP_FOLDER: no files in /nonexistent: No such file or directory\n"
        assert one.end().endswith(said)


def test_a_host_that_gives_less_than_it_promised_keeps_the_program_on_the_gpu(
    two_vgpus: Daemon,
) -> None:
    """Here by the limit of the process."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        # Else each thread that allocates maps an arena of its own, whenever it begins.
        two_vgpus.program("b", env={"MALLOC_ARENA_MAX": "1"}) as b,
    ):
        b.does("init")
        mapped = Path(f"/proc/{b.process.pid}/statm").read_text().split()[0]
        most = int(mapped) * resource.getpagesize() + 98 * MIB  # the memory, and a copy of it
        endless = resource.RLIM_INFINITY
        resource.prlimit(b.process.pid, resource.RLIMIT_AS, (most, endless))
        assert b.does("alloc", 40 * MIB)[0] == 0
        b.does("fill", 0, 2, 40 * MIB)
        waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
        wait_for(two_vgpus, b, "no host memory")
        assert not waiting.done()
        assert b.does("check", 0, 2, 40 * MIB) == [1]
        resource.prlimit(b.process.pid, resource.RLIMIT_AS, (endless, endless))
        assert waiting.result(TIMEOUT_S) == [1]


def test_a_file_takes_what_the_host_has_no_room_for(
    two_vgpus: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    two_vgpus.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "128MiB")
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        for value in range(3):
            assert a.does("check", 0, 1, 40 * MIB) == [1]
            assert b.does("check", 0, 2 + value, 40 * MIB) == [1]
            b.does("fill", 0, 3 + value, 40 * MIB)
        used = {one.name for one in tmp_path.iterdir()}
        assert used <= {"gpu", "socket", "socket.lock", "socket.state"}  # the files have no names


def test_files_count_only_for_programs_that_have_a_folder(two_vgpus: Daemon) -> None:
    two_vgpus.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "128MiB")
    with started(two_vgpus, "a", 40, 1), two_vgpus.program("b") as b:
        b.does("init")
        assert b.says("alloc", 40 * MIB) == OUT_OF_MEMORY


@pytest.mark.parametrize("with_files", ["a", "b"])
def test_memory_is_kept_for_programs_that_have_no_folder(
    two_vgpus: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_files: str
) -> None:
    """Whichever leaves the GPU first."""
    two_vgpus.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "40MiB")

    def start(vgpu: str, value: int) -> Program:
        monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path) if vgpu == with_files else "")
        return started(two_vgpus, vgpu, 40, value)

    with start("a", 1) as a, start("b", 2) as b:
        for _ in range(3):
            assert a.does("check", 0, 1, 40 * MIB) == [1]
            assert b.does("check", 0, 2, 40 * MIB) == [1]


def test_a_full_disk_keeps_the_program_on_the_gpu(
    two_vgpus: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's blocks are allocated before anything leaves the GPU."""
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    two_vgpus.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "128MiB")
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        started(two_vgpus, "b", 40, 2) as b,
    ):
        resource.prlimit(b.process.pid, resource.RLIMIT_FSIZE, (30 * MIB, 30 * MIB))
        waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
        wait_for(two_vgpus, b, "no host memory")
        assert not waiting.done()
        assert b.does("check", 0, 2, 40 * MIB) == [1]
        two_vgpus.must("gpu", "set", "--host-memory", "128MiB")
        assert waiting.result(TIMEOUT_S) == [1]


def test_free_places_are_as_in_a_naive_model(gpu: Gpu) -> None:
    process = gpu.run("free_places", str(seed_of_test()), "50000", under_gdev=False)
    assert process.returncode == 0, process.stdout


@pytest.mark.parametrize("where", ["memory", "files"])
def test_places_that_are_given_back_are_merged(
    two_vgpus: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Small allocations, then a large one in their place: the host needs no more for it."""
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    host, files = {"memory": ("64MiB", "0"), "files": ("0", "40MiB")}[where]
    two_vgpus.must("gpu", "set", "--host-memory", host, "--swap-files", files)
    with two_vgpus.program("a") as a:
        a.does("init")

        def go_off_and_on() -> None:
            for what, words in (("pause", "off, paused"), ("resume", " on ")):
                two_vgpus.must(what, str(a.process.pid))
                if what == "resume":
                    a.does("fill", key, 7, MIB)  # it comes back for that
                wait_for(two_vgpus, a, words)

        keys = [a.does("alloc", 4 * MIB)[0] for _ in range(10)]
        key = keys[0]
        go_off_and_on()
        for one in keys:
            a.does("free", one)
        key = a.does("alloc", 40 * MIB)[0]
        a.does("fill", key, 7, 40 * MIB)
        go_off_and_on()
        assert a.does("check", key, 7, 40 * MIB) == [1]


def own_mebibytes(program: Program) -> int:
    """The host's memory that a program has for itself."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) >> 10


def comes_to(program: Program, mebibytes: int) -> bool:
    """Waits until a program has so much for itself. Returns false after some seconds."""
    end = time.monotonic() + 10
    while own_mebibytes(program) < mebibytes and time.monotonic() < end:
        time.sleep(0.02)
    return own_mebibytes(program) >= mebibytes


def test_a_gpu_that_fills_up_has_room_on_the_host_before_anybody_must_leave(
    gpu_files: Path, tmp_path: Path
) -> None:
    """An eighth of the GPU for each. Memory of the host is made in segments of 64 MiB."""
    daemon = Daemon(Gpu(gpu_files / "gpu", 1024 * MIB), tmp_path)
    daemon.start()
    try:
        daemon.must("vgpu", "add", "a", "--memory", "1GiB")
        with started(daemon, "a", 300, 1) as a, started(daemon, "a", 60, 2) as b:
            time.sleep(0.3)  # it would have begun
            assert own_mebibytes(a) < 64 and own_mebibytes(b) < 64
            assert a.does("alloc", 408 * MIB)[0] == 1  # 768 MiB: three quarters are full
            assert comes_to(a, 2 * 64) and comes_to(b, 64)
            assert b.does("alloc", 100 * MIB)[0] == 1  # b grows, and nobody waits yet
            assert comes_to(b, 2 * 64)
            time.sleep(0.3)
            assert own_mebibytes(a) < 6 * 64  # of 708 MiB, which moves in chunks of 256
            assert [row.count("on") for row in state(daemon).values()] == [1, 1]
    finally:
        daemon.kill()


def test_a_program_that_is_alone_makes_no_memory_on_the_host(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 60, 1) as a:
        time.sleep(0.3)
        assert own_mebibytes(a) < 64


def test_the_host_must_hold_only_what_does_not_fit(gpu_files: Path, tmp_path: Path) -> None:
    """
    1200 MiB on 1 GiB: 176 MiB may be off, and of each program 32 more, where one grows, and a chunk
    of 256. So each needs 8 segments of 64 MiB, and not 10.
    """
    daemon = Daemon(Gpu(gpu_files / "gpu", 1024 * MIB), tmp_path)
    daemon.start()
    try:
        for name in ("a", "b"):
            daemon.must("vgpu", "add", name, "--memory", "1GiB")
        daemon.must("gpu", "set", "--host-memory", f"{16 * 64 * MIB - 4096}")
        with started(daemon, "a", 600, 1) as a, started(daemon, "b", 300, 2) as b:
            assert b.says("alloc", 300 * MIB) == OUT_OF_MEMORY
            daemon.must("gpu", "set", "--host-memory", f"{16 * 64 * MIB}")
            assert b.does("alloc", 300 * MIB) == [1]
            b.does("fill", 1, 3, 300 * MIB)
            assert a.does("check", 0, 1, 600 * MIB) == [1]
            assert b.does("check", 0, 2, 300 * MIB) == b.does("check", 1, 3, 300 * MIB) == [1]
            assert a.does("check", 0, 1, 600 * MIB) == [1]
    finally:
        daemon.kill()
