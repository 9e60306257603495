"""Something is full: the disk of the daemon's file, a socket that nobody reads."""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path

import pytest

from .gdev_daemon import Daemon
from .simulated_gpu import TIMEOUT_S
from .test_protocol import HELLO, LIST, MEMORY, MIB, OBSERVE, ask, connect, packed, works


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


def test_a_client_that_never_reads_is_cut_off(shared: Daemon) -> None:
    """Its answers fill its socket; the daemon does not wait for it, and counts nothing of it."""
    with connect(shared) as one:
        assert ask(one, HELLO, b"a")[0] == 0
        one.setblocking(False)
        end = time.monotonic() + TIMEOUT_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                with contextlib.suppress(BlockingIOError):
                    one.sendall(packed(MEMORY))
        assert time.monotonic() < end, "it is not cut off"
        works(shared)
        with connect(shared) as other:
            _, numbers = ask(other, LIST, b"", 0)
            assert numbers[1:4] == [0, 0, 0]


def test_signals_that_nobody_reads_hold_up_nobody(shared: Daemon) -> None:
    """A client's socket of signals is full after some hundred questions."""
    with connect(shared) as silent, connect(shared) as other, shared.program("a") as program:
        program.does("init")
        assert ask(silent, HELLO, b"a")[0] == 0  # the descriptors are on their way for ever
        for _ in range(400):
            assert ask(other, OBSERVE, b"", 1)[0] == 0
            time.sleep(0.01)
        program.does("alloc", 2 * MIB)
        works(shared)
