// Programs without gpufs, for comparison (SYSTOR 2016, section 3). All find the tiles that
// make_collage() finds.
#pragma once

#include <vector>

#include "collage/collage.hpp"

namespace gpufs::collage {

struct rival_result {
  std::vector<std::uint32_t> tiles;
  double seconds;  // without what a program allocates and maps once
};

// All throw gpufs::error. With a path: the file's error. ENOMEM.

// A program for the CPU: mapped files, all cores, vector instructions.
rival_result collage_on_host(const dataset& from, const block_picture& picture, unsigned threads);

// A CUDA program with two kernels. The first makes the keys. Host threads make the lists, copy each
// tile of the lists once into pinned buffers, and send them to the GPU, which must have room for
// all of them. The second kernel compares. ENOTSUP if it was built without CUDA.
rival_result collage_by_two_kernels(const dataset& from, const block_picture& picture,
                                    unsigned threads);

// The same, but the dataset is in GPU memory before the time begins, and a kernel makes the lists.
// ENOTSUP as above.
rival_result collage_of_resident(const dataset& from, const block_picture& picture);

}  // namespace gpufs::collage
