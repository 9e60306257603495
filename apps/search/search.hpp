// Image search: finds which vectors of some files (the databases) are near the vectors of a query
// file (TOCS 6.2.1, SYSTOR 6.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"

namespace gpufs::search {

// Vectors of float32 in a file.
struct vectors_file {
  std::string path;
  std::uint64_t offset = 0;  // bytes before the first vector; a multiple of 4
  std::uint64_t stride = 0;  // bytes from one vector to the next; a multiple of 4
  std::uint64_t count = 0;
};

struct question {
  vectors_file queries;
  std::vector<vectors_file> databases;  // in the order of the search
  std::uint64_t dimensions = 0;         // numbers of a vector
  double threshold = 0;                 // the largest distance that counts; may be infinite
  // How many nearest vectors each query gets. 0: the first vector within the threshold, in the
  // order of databases and their vectors.
  std::uint32_t top = 0;
};

inline constexpr std::uint32_t top_max = 1024;
inline constexpr std::uint64_t dimensions_end = std::uint64_t{1}
                                                << 30;  // a vector's bytes are counted in 32 bits
inline constexpr std::uint64_t nothing = ~std::uint64_t{0};

// A vector that was found. If two are equally far, the first one is found.
struct found {
  double squared_distance;  // Euclidean, of float32 numbers, computed in float64
  std::uint64_t index;      // in all databases, concatenated; `nothing` if there is none
};

// Returns `top` vectors (1 for 0) for each query, nearest first. Matrix units compute the product
// of queries and databases in bfloat16, with a bound of its error. Candidates within the bound are
// computed again in float64, so the result is exact. Waits. `alone`: no other thread of the process
// calls the CUDA driver meanwhile (launch_shape::bulk).
//
// Throws gpufs::error. With a path: the file's error, ENODATA if it is too short. Without a path:
// EINVAL for impossible arguments, ENOMEM, EIO. Errors of a database appear only if the search
// reaches it: the first matches of all queries may lie before it.
std::vector<found> search(mount& m, const question& q, bool alone);

// Throws EINVAL if the question cannot be answered.
void check(const question& q);

}  // namespace gpufs::search
