// What is rejected before any file is opened.
#pragma once

#include <cerrno>

#include "collage/collage.hpp"

namespace gpufs::collage {

inline void check(mount& m, const block_picture& picture) {
  if (picture.blocks() == 0) throw error(EINVAL, "a picture without blocks");
  if (picture.blocks() > ~std::uint32_t{0})
    throw error(EINVAL, "a picture of more than 2^32 blocks");
  if (m.options().page_bytes < page_bytes_min)
    throw error(EINVAL, "a collage needs pages of 1 KiB or more");
}

}  // namespace gpufs::collage
