"""A PyTorch kernel (torch.cuda._compile_kernel) that gathers rows of a file into a tensor.

The row numbers of a batch are known only on the GPU. The kernel reads the rows from the file, and
writes their sums to another file.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import gpufs

KERNEL = r"""
#include <gpufs/gpufs.cuh>

// Each warp reads rows picks[warp], picks[warp + warps], ... of 256 floats. `result`: 0, or the
// -errno of a warp.
extern "C" __global__ void gather(const gpufs::mount_ref* mount, const char* matrix,
                                  const char* sums, const long* picks, int count, float* rows,
                                  long* result) {
  const gpufs::mount_ref& fs = *mount;
  const auto warp = gpufs::this_warp();
  const int in = gpufs::gopen(warp, fs, matrix);
  const int out = gpufs::gopen(warp, fs, sums, O_WRONLY | O_CREAT);
  long error = in < 0 ? in : out < 0 ? out : 0;
  for (int i = warp.grid_rank(); error == 0 && i < count; i += warp.grid_size()) {
    float* const row = rows + 256l * i;
    const long bytes = gpufs::gread(warp, fs, in, row, 1024, 1024 * picks[i]);
    if (bytes != 1024) {
      error = bytes < 0 ? bytes : -EINVAL;
      break;
    }
    float sum = 0;
    if (warp.is_leader())
      for (int k = 0; k < 256; ++k) sum += row[k];
    // In global memory, because all members must pass the same readable bytes.
    if (warp.is_leader()) rows[256l * count + i] = sum;
    warp.sync();
    const long written =
        gpufs::gwrite(warp, fs, out, rows + 256l * count + i, sizeof sum, sizeof sum * i);
    if (written < 0) error = written;
  }
  const int closed = gpufs::gclose(warp, fs, out);
  if (error == 0) error = closed;
  (void)gpufs::gclose(warp, fs, in);  // the file was only read
  if (error != 0 && warp.is_leader()) *result = error;
}
"""

ROWS, PICKED, BLOCKS, THREADS = 10_000, 1000, 32, 128


def main() -> None:
    """Runs the kernel once, and checks the tensor and the file."""
    import torch

    kernel = torch.cuda._compile_kernel(KERNEL, "gather", nvcc_options=gpufs.compile_options())
    # Small integers, whose sums are exact.
    matrix = torch.randint(0, 100, (ROWS, 256)).to(torch.float32)
    picks = torch.randint(0, ROWS, (PICKED,), device="cuda")
    with (
        tempfile.TemporaryDirectory() as folder,
        gpufs.mount(device="cuda", cache="64MiB") as mount,
    ):
        source, target = Path(folder, "matrix"), Path(folder, "sums")
        source.write_bytes(matrix.numpy().tobytes())

        def path(file: Path) -> torch.Tensor:
            return torch.tensor([*os.fsencode(file), 0], dtype=torch.uint8, device="cuda")

        rows = torch.empty(PICKED * 257, dtype=torch.float32, device="cuda")
        result = torch.zeros(1, dtype=torch.int64, device="cuda")
        # PyTorch passes only tensors as pointers. This tensor is the handle itself, without a copy.
        # device_ref() before each launch wakes the service.
        ref = torch.as_tensor(mount.device_ref(), device="cuda")
        arguments = [ref, path(source), path(target), picks, PICKED, rows, result]
        kernel((BLOCKS, 1, 1), (THREADS, 1, 1), arguments)
        error = int(result.item())  # waits for the kernel
        assert error == 0, f"a warp failed: {os.strerror(-error)}"
        picked = rows[: PICKED * 256].reshape(PICKED, 256).cpu()
        assert torch.equal(picked, matrix[picks.cpu()]), "the rows are wrong"
        sums = torch.frombuffer(bytearray(target.read_bytes()), dtype=torch.float32)
        assert torch.equal(sums, picked.sum(1)), "the file is wrong"
        del ref
    print(f"PyTorch: {PICKED} rows of {ROWS}, picked on the GPU, read from a file by the kernel")


if __name__ == "__main__":
    main()
