"""Something is full: the disk of the daemon's file, a socket that nobody reads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import resource
import time
from pathlib import Path

import pytest

from .gdev_daemon import Daemon
from .simulated_gpu import TIMEOUT_S
from .test_protocol import HELLO, HOST, LIST, MEMORY, MIB, OBSERVE, ask, connect, packed, works
from .test_swap import started


@pytest.mark.parametrize("limit", [0, 20])
def test_a_full_disk_keeps_the_old_state_file(daemon: Daemon, tmp_path: Path, limit: int) -> None:
    """The command fails, and says why; the daemon goes on, and a new one reads the old file."""
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    before = (tmp_path / "socket.state").read_text()
    assert daemon.process is not None
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (limit, -1))
    failed = daemon.gdev("vgpu", "add", "b", "--memory", "16MiB")
    assert failed.returncode == 1
    assert ("File too large" if limit == 0 else "No space left") in failed.stderr
    assert (tmp_path / "socket.state").read_text() == before
    assert not (tmp_path / "socket.state.new").exists()
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
    daemon.must("vgpu", "add", "c", "--memory", "16MiB")
    daemon.kill()
    daemon.start()
    assert daemon.must("vgpu", "list").count("16 MiB") == 3


def test_a_file_that_a_killed_daemon_began_does_not_stay(daemon: Daemon, tmp_path: Path) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    daemon.kill()
    (tmp_path / "socket.state.new").write_text("gpus 1")
    daemon.start()
    assert not (tmp_path / "socket.state.new").exists()
    assert "a" in daemon.must("vgpu", "list").split()


def test_a_client_that_never_reads_is_cut_off(two_vgpus: Daemon) -> None:
    """Its answers fill its socket; the daemon does not wait for it, and counts nothing of it."""
    with connect(two_vgpus) as one:
        assert ask(one, HELLO, b"a")[0] == 0
        one.setblocking(False)
        end = time.monotonic() + TIMEOUT_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                with contextlib.suppress(BlockingIOError):
                    one.sendall(packed(MEMORY))
        assert time.monotonic() < end, "it is not cut off"
        works(two_vgpus)
        with connect(two_vgpus) as other:
            _, numbers = ask(other, LIST, b"", 0)
            assert numbers[1:4] == [0, 0, 0]


def test_signals_that_nobody_reads_hold_up_nobody(two_vgpus: Daemon) -> None:
    """A client's socket of signals is full after some hundred questions."""
    with (
        connect(two_vgpus) as silent,
        connect(two_vgpus) as other,
        two_vgpus.program("a") as program,
    ):
        program.does("init")
        assert ask(silent, HELLO, b"a")[0] == 0  # the descriptors are on their way for ever
        for _ in range(400):
            assert ask(other, OBSERVE, b"", 1)[0] == 0
            time.sleep(0.01)
        program.does("alloc", 2 * MIB)
        works(two_vgpus)


def wait_until_it_stays(daemon: Daemon) -> None:
    end = time.monotonic() + TIMEOUT_S
    while "no host memory" not in daemon.must("ps"):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_full_disk_takes_nothing_of_what_files_may_have(
    two_vgpus: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    two_vgpus.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "64MiB")
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        started(two_vgpus, "b", 40, 2) as b,
        connect(two_vgpus) as other,
    ):
        resource.prlimit(b.process.pid, resource.RLIMIT_FSIZE, (30 * MIB, -1))
        waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
        wait_until_it_stays(two_vgpus)
        assert ask(other, HELLO, b"a")[0] == 0
        end = time.monotonic() + TIMEOUT_S
        while ask(other, HOST, b"", 0, 64 * MIB)[0] != 0:  # between two tries of b
            assert time.monotonic() < end, "all that files may have is held"
        assert ask(other, HOST, b"", 0, 0)[0] == 0
        resource.prlimit(b.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
        assert waiting.result(TIMEOUT_S) == [1]


def test_less_for_files_keeps_nobody_from_the_memory_of_the_host(
    two_vgpus: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in files stays there; the others go on with what they may have."""
    monkeypatch.setenv("GDEV_SWAP_FOLDER", str(tmp_path))
    two_vgpus.must("gpu", "set", "--host-memory", "64MiB", "--swap-files", "64MiB")
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        assert a.does("check", 0, 1, 40 * MIB) == [1]  # b is in a file
        two_vgpus.must("gpu", "set", "--host-memory", "128MiB", "--swap-files", "0")
        a.does("free", 0)
        with started(two_vgpus, "a", 40, 3) as c:
            for _ in range(2):
                assert b.does("check", 0, 2, 40 * MIB) == [1]
                assert c.does("check", 0, 3, 40 * MIB) == [1]
