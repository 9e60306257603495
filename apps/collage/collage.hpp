// Image collages: finds for each block of a picture the most similar tile of a dataset, by
// locality-sensitive hashing. One kernel does it, and reads the dataset itself (SYSTOR 2016,
// section 2.4).
#pragma once

#include <string>
#include <vector>

#include "collage/layout.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::collage {

// A dataset's folder, and the contents of the head of its `tables`.
struct dataset {
  std::string records, tables;  // paths
  table_places places;
  std::vector<hash_function> functions;
};

// Throws gpufs::error with a path: the error of open or read; EINVAL if the file is no dataset, or
// of another version; ENODATA if a file is too short.
dataset open_dataset(const std::string& folder);

// A picture in blocks of 32x32 pixels: red, green and blue, row by row without gaps.
struct block_picture {
  const std::uint8_t* pixels;
  std::uint32_t columns, rows;  // in blocks
  std::uint64_t blocks() const { return std::uint64_t{columns} * rows; }
  std::uint64_t bytes() const { return blocks() * picture_bytes; }
};

// Memory of the caller for the results.
struct tiles_found {
  std::uint32_t *tiles, *distances;  // one for each block
  std::uint8_t* pixels;              // the collage, in the format of the picture
};

struct summary {
  std::uint64_t candidates;  // tiles that were compared, summed over the blocks
  // from the start of the picture's transfer to the device until the tile numbers are on the host
  double seconds;
};

// The mount's pages must have 1 KiB or more. Waits. Throws gpufs::error. Without a path: EINVAL for
// a picture without blocks or for smaller pages, ENOMEM, EIO for an error of the device. With a
// path: the file's error, ENODATA if it is too short, EINVAL if its content is invalid. After an
// error, the contents of `to` are undefined.
summary make_collage(mount& m, const dataset& from, const block_picture& picture,
                     const tiles_found& to);

}  // namespace gpufs::collage
