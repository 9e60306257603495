// What one would write without gpufs, to be compared with (SYSTOR 2016, section 3). All find the
// tiles that make_collage() finds.
#pragma once

#include <vector>

#include "collage/collage.hpp"

namespace gpufs::collage {

struct rival_result {
  std::vector<std::uint32_t> tiles;
  double seconds;  // without what a program allocates and maps once
};

// All throw gpufs::error: with a path what its file gave; ENOMEM.

// A program for the CPU: mapped files, all cores, vectors.
rival_result collage_on_host(const dataset& from, const block_picture& picture, unsigned threads);

// A CUDA program in two kernels: the first makes the keys; threads of the host make the lists, read
// each tile that is in one of them into pinned buffers, and send them to the GPU, which must have
// room for all of them; the second compares. ENOTSUP where this was built without CUDA.
rival_result collage_by_two_kernels(const dataset& from, const block_picture& picture,
                                    unsigned threads);

// The same with the dataset in the GPU's memory before the time begins, and lists that a kernel
// makes. ENOTSUP as above.
rival_result collage_of_resident(const dataset& from, const block_picture& picture);

}  // namespace gpufs::collage
