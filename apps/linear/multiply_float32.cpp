// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "linear/matmul_kernels.cuh"

namespace gpufs::linear {

void start(const job::job& work, const multiply_tiles<float>& kernel) { work.launch(kernel); }

}  // namespace gpufs::linear
