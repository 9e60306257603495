// Puts similar blocks of a picture next to each other.
#pragma once

#include <algorithm>
#include <vector>

#include "collage/kernels.cuh"
#include "job/job.hpp"

namespace gpufs::collage {

// Orders blocks by brightness: equally bright blocks want many of the same tiles, more than blocks
// with the same key in one table. Waits.
inline void put_in_order(const job::job& work, const plan& p, char* memory) {
  std::vector<std::uint32_t> numbers(p.blocks());
  const auto array = reinterpret_cast<std::uint32_t*>(memory + p.order);
  work.launch(weigh_blocks{{}, p, memory}, p.blocks(), work.many());
  work.of().synchronize();
  work.of().copy_to_host(numbers.data(), array, numbers.size() * sizeof numbers[0]);
  std::vector<std::uint64_t> pairs(numbers.size());
  for (std::size_t b = 0; b < pairs.size(); ++b) pairs[b] = std::uint64_t{numbers[b]} << 32 | b;
  std::ranges::sort(pairs);
  std::ranges::transform(pairs, numbers.begin(),
                         [](std::uint64_t pair) { return static_cast<std::uint32_t>(pair); });
  work.of().copy_to_device(array, numbers.data(), numbers.size() * sizeof numbers[0]);
}

}  // namespace gpufs::collage
