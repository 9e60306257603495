// Image search: which vectors of some files, the databases, are near which of a file of queries
// (TOCS 6.2.1, SYSTOR 6.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"

namespace gpufs::search {

// Vectors of float32 in a file.
struct vectors_file {
  std::string path;
  std::uint64_t offset = 0;  // bytes in front of the first; a multiple of 4
  std::uint64_t stride = 0;  // bytes from one to the next; a multiple of 4
  std::uint64_t count = 0;
};

struct question {
  vectors_file queries;
  std::vector<vectors_file> databases;  // in the order in which they are looked through
  std::uint64_t dimensions = 0;         // numbers of a vector
  double threshold = 0;                 // the largest distance that counts; may be infinite
  // The nearest so many of each query; 0: the first within the threshold, in the order of databases
  // and their vectors.
  std::uint32_t top = 0;
};

inline constexpr std::uint32_t top_max = 1024;
inline constexpr std::uint64_t dimensions_end = std::uint64_t{1}
                                                << 30;  // a vector's bytes are counted in 32 bits
inline constexpr std::uint64_t nothing = ~std::uint64_t{0};

// A vector that was found. Of two that are equally far the first.
struct found {
  double squared_distance;  // Euclidean, of float32 numbers, computed in float64
  std::uint64_t index;      // in all databases, one behind the other; `nothing` where there is none
};

// For each query `top` vectors (1 for 0), the nearest first. The product of queries and databases
// is computed by matrix units in bfloat16, with a bound of its error; what may be near enough is
// computed again in float64. So what is found is exact. What is wrong with a database is told when
// it is needed: the first matches of all queries may lie in front of it. Waits. `alone`: no other
// thread of the process calls the CUDA driver meanwhile (launch_shape::bulk). Throws gpufs::error:
// with a path what its file gave, ENODATA if it is shorter than it should be; without one EINVAL
// for what cannot be, ENOMEM, EIO.
std::vector<found> search(const mount& m, const question& q, bool alone);

// Whether it can be answered at all, or throws EINVAL.
void check(const question& q);

}  // namespace gpufs::search
