"""A CuPy kernel that opens a file and writes a copy in upper case.

python cupy_raw_module.py            compiled by NVRTC
python cupy_raw_module.py nvcc       compiled by the CUDA toolkit's nvcc
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import gpufs

KERNEL = r"""
#include <gpufs/gpufs.cuh>

// Each warp converts 4096 bytes; `result` gets the bytes that it has written, or -errno.
extern "C" __global__ void upper_case(const gpufs::mount_ref* mount, const char* from,
                                      const char* to, char* buffer, long long* result) {
  const gpufs::mount_ref& fs = *mount;
  const auto warp = gpufs::this_warp();
  const long long offset = 4096 * warp.grid_rank();
  char* const part = buffer + offset;
  const int in = gpufs::gopen(warp, fs, from);
  const int out = gpufs::gopen(warp, fs, to, O_WRONLY | O_CREAT);
  long long bytes = out < 0 ? out : gpufs::gread(warp, fs, in, part, 4096, offset);
  for (long long i = warp.rank(); i < bytes; i += warp.size())
    if (part[i] >= 'a' && part[i] <= 'z') part[i] -= 'a' - 'A';
  warp.sync();
  if (bytes > 0) bytes = gpufs::gwrite(warp, fs, out, part, bytes, offset);
  // The last close reports whether all bytes have reached the file.
  const int closed = gpufs::gclose(warp, fs, out);
  (void)gpufs::gclose(warp, fs, in);  // the file was only read
  if (warp.is_leader()) result[warp.grid_rank()] = bytes < 0 || closed == 0 ? bytes : closed;
}
"""

BLOCKS, THREADS = 32, 128
WARPS = BLOCKS * THREADS // 32


def main(backend: str = "nvrtc") -> None:
    """Runs the kernel once, and checks the file."""
    import cupy

    module = cupy.RawModule(code=KERNEL, options=tuple(gpufs.compile_options()), backend=backend)
    kernel = module.get_function("upper_case")
    content = os.urandom(WARPS * 2048).hex().encode()[: WARPS * 4096 - 100]
    with (
        tempfile.TemporaryDirectory() as folder,
        gpufs.mount(device="cuda", cache="64MiB") as mount,
    ):
        source, target = Path(folder, "source"), Path(folder, "target")
        source.write_bytes(content)

        def path(file: Path) -> cupy.ndarray:
            return cupy.frombuffer(os.fsencode(file) + b"\0", dtype=cupy.uint8)

        result = cupy.zeros(WARPS, cupy.int64)
        buffer = cupy.empty(WARPS * 4096, cupy.uint8)
        ref = mount.device_ref()  # before each launch: wakes the service
        kernel((BLOCKS,), (THREADS,), (ref.address, path(source), path(target), buffer, result))
        written = result.get()  # waits for the kernel
        assert written.min() > 0, f"a warp failed: {os.strerror(-int(written.min()))}"
        assert written.sum() == len(content), written
        assert target.read_bytes() == content.upper(), "the file is wrong"
    print(f"CuPy ({backend}): {WARPS} warps copied {len(content)} bytes in upper case")


if __name__ == "__main__":
    main(*sys.argv[1:])
