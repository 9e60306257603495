// Compiled by nvcc if there is one, otherwise by the host compiler. As a whole program: ptxas makes
// each wgmma instruction wait for the previous one in a kernel that calls separate functions.
#include "linear/matmul_kernels.cuh"

namespace gpufs::linear {

template void launch_multiply(const job::job& work, const multiply_tiles<float>& kernel);

}  // namespace gpufs::linear
