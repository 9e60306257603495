"""gdev.shm(): device memory shared by keys, in Python."""

from __future__ import annotations

import subprocess
import sys

from .gdev_daemon import Daemon
from .simulated_gpu import TIMEOUT_S

# A consumer of DLPack, which on this machine no library is: none knows the simulated GPU.
CONSUMER = '''
import ctypes, errno, gc, gdev
from gdev import _shm

def call(name, *arguments):
    assert getattr(ctypes.CDLL(None), name)(*arguments) == 0

def take(capsule):
    """Returns the tensor's data and bytes, and what ends it, as a library does."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"dltensor")
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, take.used)
    words = (ctypes.c_int64 * 9).from_address(address)
    assert words[1] == 2 and words[2] & 0xFFFFFFFF == 1  # CUDA device 0, one dimension
    assert words[2] >> 32 == 1 | 8 << 8 | 1 << 16  # unsigned, 8 bits, 1 lane
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(words[7])
    shape = ctypes.c_int64.from_address(words[3]).value
    return words[0], shape, lambda: deleter(address)
take.used = b"used_dltensor"

def fill(pointer, value, size):
    call("cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(value), ctypes.c_size_t(size))
    call("cuCtxSynchronize")

def bytes_at(pointer, size):
    copied = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH_v2", copied, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
    return copied.raw

def fails(error, action):
    try:
        action()
    except error as found:
        return found
    raise AssertionError("it did not fail")
'''


def run(daemon: Daemon, code: str, said: str = "") -> str:
    """Runs code under gdev. Returns what it printed; standard error must contain ``said``."""
    done = daemon.gdev("run", "--vgpu", "a", "--", sys.executable, "-c", CONSUMER + code)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr and bool(said) == bool(done.stderr)
    return done.stdout


def test_one_program_leaves_bytes_for_another(shared: Daemon) -> None:
    run(shared, "with gdev.shm('weights', 5000) as one: fill(one.pointer, 42, 5000)")
    said = run(
        shared,
        "one = gdev.shm('weights', 0, create=False)\n"
        "print(one.nbytes, set(bytes_at(one.pointer, one.nbytes)))\n"
        "one.remove()",
    )
    assert said == "5000 {42}\n"
    assert len(shared.must("shm").splitlines()) == 1


def test_dlpack_gives_the_memory_and_keeps_it(shared: Daemon) -> None:
    run(
        shared,
        "one = gdev.shm('a', 3000)\n"
        "assert one.__dlpack_device__() == (2, 0)\n"
        "data, size, end = take(one.__dlpack__(stream=1, max_version=(1, 0)))\n"
        "assert (data, size) == (one.pointer, 3000)\n"
        "fails(BufferError, one.close)\n"
        "pointer = one.pointer\n"
        "del one; gc.collect()\n"
        "fill(data, 1, size)\n"  # attached still
        "assert set(bytes_at(data, size)) == {1}\n"
        "end()\n"
        "assert not _shm._exports\n"
        "again = gdev.shm('a', 3000)\n"
        "unused = again.__dlpack__()\n"  # nobody takes it
        "fails(BufferError, again.close)\n"
        "del unused\n"
        "again.close(); again.close()\n"
        "fails(ValueError, lambda: again.pointer)\n"
        "fails(ValueError, lambda: again.__dlpack__())\n",
    )


def test_the_array_interface_names_the_bytes(shared: Daemon) -> None:
    run(
        shared,
        "one = gdev.shm('a', 100)\n"
        "found = one.__cuda_array_interface__\n"
        "assert (found['data'], found['shape'], found['typestr']) == "
        "((one.pointer, False), (100,), '|u1')\n",
    )


def test_a_number_is_the_key_of_programs_in_c(shared: Daemon) -> None:
    run(
        shared,
        "one, same = gdev.shm(42, 100), gdev.shm(42, 0)\n"
        "assert one.key == 42 and same.id == one.id and same.nbytes == 100\n"
        "text = gdev.shm('weights', 100)\n"
        "assert gdev.shm(gdev.key_of('weights'), 0).id == text.id\n"
        "for key in (0, -1, 1 << 63):\n"
        "    fails(ValueError, lambda: gdev.shm(key, 1))\n"
        "assert fails(OSError, lambda: gdev.shm(7, 1, create=False)).filename == '7'\n",
    )


def test_errors_name_the_key(shared: Daemon) -> None:
    run(
        shared,
        "found = fails(FileNotFoundError, lambda: gdev.shm('no such', 1, create=False))\n"
        "assert found.filename == 'no such'\n"
        "one = gdev.shm('a', 100)\n"
        "assert fails(FileExistsError, lambda: gdev.shm('a', 1, exclusive=True)).filename == 'a'\n"
        "assert fails(OSError, lambda: gdev.shm('a', 101)).errno == errno.EINVAL\n"
        "assert fails(OSError, lambda: gdev.shm('b', 17 << 20)).errno == errno.ENOMEM\n"
        "fails(ValueError, lambda: gdev.shm('b', -1))\n"
        "fails(BufferError, lambda: one.__dlpack__(copy=True))\n"
        "fails(BufferError, lambda: one.__dlpack__(dl_device=(1, 0)))\n",
        said="the limit is reached",
    )


def run_without(daemon: Daemon, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=daemon.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


def test_without_gdev_it_says_so(shared: Daemon) -> None:
    code = "import gdev\ntry:\n  gdev.shm('a', 1)\nexcept OSError as error:\n  print(error)"
    said = "[Errno 38] the program does not run under gdev (gdev run): 'a'\n"
    assert run_without(shared, code) == said


def test_importing_gdev_loads_nothing_else(shared: Daemon) -> None:
    code = "import sys, gdev; print({'ctypes', 'gdev._shm', 'typer'} & {*sys.modules})"
    assert run_without(shared, code) == "set()\n"


def test_a_text_is_the_same_key_in_all_programs(shared: Daemon) -> None:
    """Others may compute it: BLAKE2b of 8 bytes, little-endian, without the highest bit."""
    code = "from gdev._shm import key_of; print(key_of('weights'), key_of(''))"
    assert run_without(shared, code) == "8074931560301046414 3797230976420062948\n"
