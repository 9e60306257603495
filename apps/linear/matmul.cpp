// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "linear/matmul_kernels.cuh"
#include "linear/numbers_of.hpp"

namespace gpufs::linear {

void start(const job::job& work, const multiply_tiles<bfloat16>& kernel) { work.launch(kernel); }

void matmul(mount& m, const matmul_files& files, bool alone) {
  const matmul_plan plan(files, job::mount_facts::of(m));
  const job::job work(m, "matmul", {files.left.path, files.right.path, files.out}, alone);
  const device_array<char> slices(m, plan.panel_bytes());
  const device_array<atomic_word<std::uint64_t>> next(m, 1), done(m, plan.down());
  for_numbers_of(plan.type, [&]<class T>(T) {
    work.launch(pack_columns<T>{{}, plan, work.file(1), slices.data()});
    start(work, multiply_tiles<T>{
                    {}, plan, work.file(0), work.file(2), slices.data(), next.data(), done.data()});
  });
  work.finish();
}

}  // namespace gpufs::linear
