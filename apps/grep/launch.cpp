// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "launch.hpp"

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"

namespace gpufs::grep {

namespace {

template <class Kernel>
void run(mount& m, const launch_size& size, std::size_t scratch_bytes, const Kernel& kernel) {
  launch_shape shape;
  shape.blocks = size.blocks;
  shape.threads = size.threads;
  shape.scratch_bytes = scratch_bytes;
  shape.bulk = false;  // other threads of a Python program may call the driver at any time
  launch(m, shape, kernel);
  m.synchronize();
}

}  // namespace

template <counted what>
void run_search(mount& m, const launch_size& size, const search_kernel<what>& kernel) {
  run(m, size, what == counted::words ? sizeof(search_memory) : sizeof(line_search_memory), kernel);
}
template void run_search(mount&, const launch_size&, const search_kernel<counted::words>&);
template void run_search(mount&, const launch_size&, const search_kernel<counted::lines>&);

void run_find_cuts(mount& m, const launch_size& size, const find_cuts_kernel& kernel) {
  run(m, size, sizeof(cut_memory), kernel);
}

}  // namespace gpufs::grep
