// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "search/kernels.cuh"

namespace gpufs::search {

void start(const job::job& work, const scan<2>& kernel) { launch(work, kernel); }

}  // namespace gpufs::search
