"""A Numba kernel that opens a file, adds up its numbers, and writes the sums to another."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import gpufs
import gpufs.numba
import numpy
from gpufs.numba import block
from numba import cuda

CHUNK = 1024  # 32-bit numbers of a block
BLOCKS, THREADS = 300, 128


def add_up(fs: int, path: Any, sums_path: Any, result: Any) -> None:  # noqa: ANN401
    """The kernel: each block reads a chunk and writes its sum. `result`: 0, or -errno."""
    chunk = cuda.shared.array(CHUNK, numpy.uint32)
    total = cuda.shared.array(1, numpy.int64)
    if cuda.threadIdx.x == 0:
        total[0] = 0
    # Collective: all threads of the block make each call.
    fd = block.gopen(fs, path)
    got = (
        block.gread(fs, fd, chunk, chunk.nbytes, cuda.blockIdx.x * chunk.nbytes) if fd >= 0 else fd
    )
    block.gclose(fs, fd)
    if got < 0:
        if cuda.threadIdx.x == 0:
            result[0] = got
        return
    mine = 0
    for i in range(cuda.threadIdx.x, got // 4, THREADS):
        mine += chunk[i]
    cuda.atomic.add(total, 0, mine)
    cuda.syncthreads()
    out = block.gopen(fs, sums_path, os.O_WRONLY | os.O_CREAT)
    written = block.gwrite(fs, out, total, 8, cuda.blockIdx.x * 8)
    closed = block.gclose(fs, out)  # the last close reports whether all bytes have reached the file
    if cuda.threadIdx.x == 0:
        if written < 0:
            result[0] = written
        elif closed < 0:
            result[0] = closed


def main() -> None:
    """Runs the kernel once, and checks the file."""
    numbers = numpy.random.default_rng(1).integers(0, 2**32, BLOCKS * CHUNK - 300, numpy.uint32)
    kernel = cuda.jit(add_up)
    with (
        tempfile.TemporaryDirectory() as folder,
        gpufs.mount(device="cuda", cache="64MiB") as mount,
    ):
        source, target = Path(folder, "numbers"), Path(folder, "sums")
        source.write_bytes(numbers.tobytes())
        result = cuda.to_device(numpy.zeros(1, numpy.int64))
        paths = gpufs.numba.device_path(source), gpufs.numba.device_path(target)
        ref = mount.device_ref()  # before each launch: wakes the service
        kernel[BLOCKS, THREADS](ref.address, *paths, result)
        error = int(result.copy_to_host()[0])  # waits for the kernel
        assert error == 0, f"a block failed: {os.strerror(-error)}"
        sums = numpy.frombuffer(target.read_bytes(), numpy.int64)
        expected = numpy.pad(numbers, (0, 300)).reshape(BLOCKS, CHUNK).sum(1, numpy.int64)
        assert (sums == expected).all(), "the file is wrong"
    print(f"Numba: {BLOCKS} blocks added up {len(numbers)} numbers of a file")


if __name__ == "__main__":
    main()
