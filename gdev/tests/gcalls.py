"""What the tests of the g* calls have in common: programs that make them."""

from __future__ import annotations

import errno

from .gdev_daemon import Daemon, Program
from .segments import error
from .simulated_gpu import BUILD

INVALID, NOT_OPEN = error(errno.EINVAL), error(errno.EBADF)


def start(daemon: Daemon, vgpu: str | None = "a") -> Program:
    """Starts a program; without a virtual GPU it does not run under gdev."""
    if vgpu is not None:
        return daemon.program(vgpu, "gcalls")
    environment = daemon.gpu.environment(under_gdev=False)
    return Program(
        [str(BUILD / "tests" / "gcalls")], environment | {"KERNELS": str(daemon.gpu.kernels)}
    )


def stored(program: Program, *words: object) -> int:
    """Makes a call that stores one number."""
    return program.does(*words)[0]


def numbers(program: Program, address: int, count: int, handle: int = 1) -> list[int]:
    """Copies numbers of the device, without work of its own in the handle afterwards."""
    buffer = stored(program, "host", 4 * count)
    program.does("gmemcpy_from_device", handle, buffer, address, 4 * count)
    return program.does("peek", buffer, count)


def put(program: Program, address: int, first: int, count: int, handle: int = 1) -> None:
    buffer = stored(program, "host", 4 * count)
    program.does("poke", buffer, first, count)
    program.does("gmemcpy_to_device", handle, address, buffer, 4 * count)


def launch(program: Program, entry: str, *parameters: object, handle: int = 1) -> int:
    program.does("kernel", "tests", entry, 1, 32, *parameters)
    return stored(program, "glaunch", handle, "_", "_")
