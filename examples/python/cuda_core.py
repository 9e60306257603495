"""A kernel for cuda.core: its blocks open files and count a byte in them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import gpufs

KERNEL = r"""
#include <gpufs/gpufs.cuh>

// Each block has two paths. It counts a byte in the first file and writes the count, eight bytes,
// to the second. `result` gets the count, or -errno.
extern "C" __global__ void count_byte(const gpufs::mount_ref* mount, const char* paths,
                                      int path_bytes, int byte, long long* result) {
  const gpufs::mount_ref& fs = *mount;
  const auto block = gpufs::this_block();
  const char* const path = paths + 2 * block.grid_rank() * path_bytes;
  __shared__ alignas(16) char part[4096];
  const int in = gpufs::gopen(block, fs, path);
  long long found = in < 0 ? in : 0;
  for (long long offset = 0; found >= 0;) {
    const long long bytes = gpufs::gread(block, fs, in, part, sizeof part, offset);
    if (bytes <= 0) {
      if (bytes < 0) found = bytes;
      break;
    }
    unsigned mine = 0;
    for (long long i = block.rank(); i < bytes; i += block.size()) mine += part[i] == byte;
    found += block.sum(mine);
    offset += bytes;
  }
  (void)gpufs::gclose(block, fs, in);  // the file was only read
  if (block.is_leader()) *reinterpret_cast<long long*>(part) = found;
  block.sync();
  const int out = gpufs::gopen(block, fs, path + path_bytes, O_WRONLY | O_CREAT);
  if (found >= 0) {
    const long long written = gpufs::gwrite(block, fs, out, part, sizeof found, 0);
    if (written < 0) found = written;
  }
  const int closed = gpufs::gclose(block, fs, out);
  if (found >= 0 && closed < 0) found = closed;
  if (block.is_leader()) result[block.grid_rank()] = found;
}
"""

FILES, THREADS = 16, 128
BYTE = ord("7")


def main() -> None:
    """Runs the kernel once, and checks the counts and the files."""
    import numpy
    from cuda.core import (
        Device,
        LaunchConfig,
        LegacyPinnedMemoryResource,
        Program,
        ProgramOptions,
        launch,
    )

    device = Device()
    device.set_current()
    stream = device.create_stream()
    options = ProgramOptions(
        std="c++20", arch=f"sm_{device.arch}", include_path=gpufs.include_dirs()
    )
    kernel = Program(KERNEL, "c++", options).compile("cubin").get_kernel("count_byte")
    with (
        tempfile.TemporaryDirectory() as folder,
        gpufs.mount(device="cuda", cache="64MiB") as mount,
    ):
        sources = [Path(folder, f"{number:04}.source") for number in range(FILES)]
        targets = [Path(folder, f"{number:04}.target") for number in range(FILES)]
        for number, file in enumerate(sources):
            file.write_bytes(os.urandom(5000 * number).hex().encode())
        names = [os.fsencode(file) for pair in zip(sources, targets, strict=True) for file in pair]
        path_bytes = len(names[0]) + 1
        # Memory that both the host and the GPU can access.
        memory = LegacyPinnedMemoryResource()
        paths = memory.allocate(2 * FILES * path_bytes, stream=stream)
        result = memory.allocate(8 * FILES, stream=stream)
        numpy.from_dlpack(paths).view(numpy.uint8)[:] = numpy.frombuffer(
            b"\0".join(names) + b"\0", numpy.uint8
        )
        ref = mount.device_ref()  # before each launch: wakes the service
        arguments = (ref.address, paths, numpy.int32(path_bytes), numpy.int32(BYTE), result)
        launch(stream, LaunchConfig(grid=FILES, block=THREADS), kernel, *arguments)
        stream.sync()
        found = numpy.from_dlpack(result).view(numpy.int64).tolist()
        expected = [file.read_bytes().count(BYTE) for file in sources]
        assert found == expected, f"{found} instead of {expected}"
        assert [int.from_bytes(file.read_bytes(), "little") for file in targets] == expected, (
            "the files are wrong"
        )
        for buffer in (paths, result):
            buffer.close(stream)
    print(f"cuda.core: {FILES} blocks found {sum(found)} times {chr(BYTE)!r} in {FILES} files")


if __name__ == "__main__":
    main()
