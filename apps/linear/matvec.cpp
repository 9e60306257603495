// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "job/file_part.cuh"
#include "linear/matvec_kernels.cuh"
#include "linear/numbers_of.hpp"

namespace gpufs::linear {

void matvec(mount& m, const matvec_files& files, bool alone) {
  const matvec_plan plan(files, job::mount_facts::of(m));
  const job::job work(m, "matvec", {files.matrix.path, files.vector.path, files.out}, alone);
  const job::file_part vector(work, 1, files.vector.offset, plan.row_bytes);
  const device_array<float> sums(m, plan.sums());
  const device_array<atomic_word<std::uint32_t>> summed(m, plan.sets);
  for_numbers_of(plan.type, [&]<class T>(T) {
    work.launch(multiply_rows<T>{
        {}, plan, work.file(0), work.file(2), vector.data(), sums.data(), summed.data()});
  });
  work.finish();
}

}  // namespace gpufs::linear
