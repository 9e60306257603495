// Compiled by nvcc if there is one, otherwise by the host compiler. As a whole program: ptxas makes
// each wgmma instruction wait for the previous one in a kernel that calls separate functions.
#include "search/kernels.cuh"

namespace gpufs::search {

template void launch_scan(const job::job& work, const scan<2>& kernel, bool is_cpu);

}  // namespace gpufs::search
