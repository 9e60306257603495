// What a search rejects.
#include <cerrno>
#include <cmath>
#include <string>

#include "gpufs/base/limits.hpp"
#include "search/search.hpp"

namespace gpufs::search {
namespace {

void check(const vectors_file& file, std::uint64_t dimensions) {
  if (file.offset % sizeof(float) != 0 || file.stride % sizeof(float) != 0)
    throw error(EINVAL, "numbers at places that are no multiple of their size", file.path);
  if (file.stride / sizeof(float) < dimensions)
    throw error(EINVAL, "vectors that overlap", file.path);
  if (file.offset > limits::file_bytes_max || file.stride > limits::file_bytes_max ||
      file.count > (limits::file_bytes_max - file.offset) / file.stride)
    throw error(EINVAL, "more vectors than files have room for", file.path);
}

}  // namespace

void check(const question& q) {
  if (q.dimensions == 0) throw error(EINVAL, "vectors without numbers");
  if (q.dimensions >= dimensions_end) throw error(EINVAL, "vectors of 2^30 numbers or more");
  if (std::isnan(q.threshold) || q.threshold < 0)
    throw error(EINVAL, "a threshold is a distance: a number, and not below zero");
  if (q.top > top_max) throw error(EINVAL, "more of the nearest than " + std::to_string(top_max));
  check(q.queries, q.dimensions);
  for (const vectors_file& d : q.databases) check(d, q.dimensions);
}

}  // namespace gpufs::search
