// Image collages: for each block of a picture the most similar tile of a dataset, found by locality
// sensitive hashing, by one kernel that reads the dataset itself (SYSTOR 2016, section 2.4).
#pragma once

#include <string>
#include <vector>

#include "collage/layout.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::collage {

// A dataset's folder, and what the head of its `tables` says.
struct dataset {
  std::string records, tables;  // paths
  table_places places;
  std::vector<hash_function> functions;
};

// Throws gpufs::error with a path: what opening and reading gave; EINVAL where the file is none of
// a dataset, or of another version; ENODATA where a file is shorter than it should be.
dataset open_dataset(const std::string& folder);

// A picture in blocks of 32x32 pixels, red, green and blue, row by row without gaps.
struct block_picture {
  const std::uint8_t* pixels;
  std::uint32_t columns, rows;  // of blocks
  std::uint64_t blocks() const { return std::uint64_t{columns} * rows; }
  std::uint64_t bytes() const { return blocks() * picture_bytes; }
};

// Memory of the caller for what is found.
struct tiles_found {
  std::uint32_t *tiles, *distances;  // of each block
  std::uint8_t* pixels;              // the collage, as the picture
};

struct summary {
  std::uint64_t candidates;  // tiles that were compared, summed over the blocks
  double seconds;  // from the picture's way to the device until the tiles' numbers are on the host
};

// Pages of the mount have 1 KiB at least. Waits. Throws gpufs::error: EINVAL for a picture without
// blocks or for smaller pages; with a path what its file gave, ENODATA if it is shorter than it
// should be, EINVAL if it holds what it cannot; ENOMEM, EIO for what the device gave. Then what
// `to` holds is for no one.
summary make_collage(const mount& m, const dataset& from, const block_picture& picture,
                     const tiles_found& to);

}  // namespace gpufs::collage
