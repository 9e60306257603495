"""What the tests of memory shared by keys have in common."""

from __future__ import annotations

import time
from pathlib import Path

from .gdev_daemon import Daemon, Program
from .simulated_gpu import BUILD

MIB = 1 << 20
BLOCK = 2 * MIB
CREAT, EXCL, RDONLY = 0o1000, 0o2000, 0o10000
MAKE = CREAT | 0o600


def error(number: int) -> str:
    return f"error {number}"


def program(daemon: Daemon, vgpu: str = "a") -> Program:
    """Starts a program that has initialized CUDA."""
    made = daemon.program(vgpu, "shared_memory")
    made.does("init")
    return made


def free_bytes(daemon: Daemon) -> int:
    """Returns what is free of the GPU itself."""
    with Program(
        [str(BUILD / "tests" / "memory")], daemon.gpu.environment(under_gdev=False)
    ) as one:
        one.does("init")
        return one.does("info")[0]


def wait_until_free(daemon: Daemon, expected: int = 64 * MIB) -> None:
    end = time.monotonic() + 10
    while free_bytes(daemon) != expected:
        assert time.monotonic() < end, f"{free_bytes(daemon)} free, not {expected}"


def descriptors(daemon: Daemon) -> int:
    assert daemon.process is not None
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def wait_for_descriptors(daemon: Daemon, expected: int) -> None:
    """They are closed in another thread."""
    end = time.monotonic() + 10
    while descriptors(daemon) != expected:
        assert time.monotonic() < end, f"{descriptors(daemon)} descriptors, not {expected}"
        time.sleep(0.01)


def wait_until_gone(daemon: Daemon, process: int) -> None:
    end = time.monotonic() + 10
    while str(process) in daemon.must("ps").split():
        assert time.monotonic() < end
        time.sleep(0.02)
