// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "linear/launch.hpp"
#include "linear/matmul_kernels.cuh"

namespace gpufs::linear {

void matmul(mount& m, const matmul_files& files, bool alone) {
  const matmul_plan plan(files, job::mount_facts::of(m));
  const job::job work(m, "matmul", {files.left.path, files.right.path, files.out}, alone);
  const device_array<char> slices(m, plan.panel_bytes());
  const device_array<atomic_word<std::uint64_t>> next(m, 1), done(m, plan.down());
  launch<pack_columns>(work, plan, work.file(1), slices.data());
  launch<multiply_tiles>(work, plan, work.file(0), work.file(2), slices.data(), next.data(),
                         done.data());
  work.finish();
}

}  // namespace gpufs::linear
