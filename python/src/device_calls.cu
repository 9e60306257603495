// The device calls that gpufs.numba declares, with C names and plain arguments. Addresses are
// 64-bit numbers, because Numba has no pointers. Compiled once, when gpufs is built, and linked
// into each kernel that uses a call.
#include "gpufs/gpufs.cuh"

namespace {

__device__ const gpufs::mount_ref& mount_at(std::uint64_t address) {
  return *reinterpret_cast<const gpufs::mount_ref*>(address);
}
__device__ const char* path_at(std::uint64_t address) {
  return reinterpret_cast<const char*>(address);
}

template <class Group>
__device__ std::int64_t size_of(const Group& g, const gpufs::mount_ref& fs, std::int32_t fd) {
  gpufs::file_status status;
  const std::int32_t result = gpufs::gfstat(g, fs, fd, status);
  return result < 0 ? result : static_cast<std::int64_t>(status.size);
}

}  // namespace

// One set of functions for each kind of group. gpufs/numba/_calls.py has the same list.
#define GPUFS_CALLS_OF(group)                                                                      \
  extern "C" __device__ std::int32_t gpufs_##group##_gopen(                                        \
      std::uint64_t fs, std::uint64_t path, std::int32_t flags, std::uint32_t mode) {              \
    return gpufs::gopen(gpufs::this_##group(), mount_at(fs), path_at(path), flags, mode);          \
  }                                                                                                \
  extern "C" __device__ std::int32_t gpufs_##group##_gclose(std::uint64_t fs, std::int32_t fd) {   \
    return gpufs::gclose(gpufs::this_##group(), mount_at(fs), fd);                                 \
  }                                                                                                \
  extern "C" __device__ std::int64_t gpufs_##group##_gread(std::uint64_t fs, std::int32_t fd,      \
                                                           std::uint64_t to, std::uint64_t bytes,  \
                                                           std::int64_t offset) {                  \
    return gpufs::gread(gpufs::this_##group(), mount_at(fs), fd, reinterpret_cast<void*>(to),      \
                        bytes, offset);                                                            \
  }                                                                                                \
  extern "C" __device__ std::int64_t gpufs_##group##_gwrite(                                       \
      std::uint64_t fs, std::int32_t fd, std::uint64_t from, std::uint64_t bytes,                  \
      std::int64_t offset) {                                                                       \
    return gpufs::gwrite(gpufs::this_##group(), mount_at(fs), fd,                                  \
                         reinterpret_cast<const void*>(from), bytes, offset);                      \
  }                                                                                                \
  extern "C" __device__ std::int64_t gpufs_##group##_gfsize(std::uint64_t fs, std::int32_t fd) {   \
    return size_of(gpufs::this_##group(), mount_at(fs), fd);                                       \
  }                                                                                                \
  extern "C" __device__ std::int32_t gpufs_##group##_gfsync(std::uint64_t fs, std::int32_t fd) {   \
    return gpufs::gfsync(gpufs::this_##group(), mount_at(fs), fd);                                 \
  }                                                                                                \
  extern "C" __device__ std::int32_t gpufs_##group##_gftruncate(std::uint64_t fs, std::int32_t fd, \
                                                                std::int64_t size) {               \
    return gpufs::gftruncate(gpufs::this_##group(), mount_at(fs), fd, size);                       \
  }                                                                                                \
  extern "C" __device__ std::int32_t gpufs_##group##_gfadvise(                                     \
      std::uint64_t fs, std::int32_t fd, std::int64_t offset, std::uint64_t bytes,                 \
      std::int32_t advice) {                                                                       \
    return gpufs::gfadvise(gpufs::this_##group(), mount_at(fs), fd, offset, bytes, advice);        \
  }                                                                                                \
  extern "C" __device__ std::int32_t gpufs_##group##_gunlink(std::uint64_t fs,                     \
                                                             std::uint64_t path) {                 \
    return gpufs::gunlink(gpufs::this_##group(), mount_at(fs), path_at(path));                     \
  }                                                                                                \
  extern "C" __device__ std::int32_t gpufs_##group##_grename(std::uint64_t fs, std::uint64_t path, \
                                                             std::uint64_t new_path) {             \
    return gpufs::grename(gpufs::this_##group(), mount_at(fs), path_at(path), path_at(new_path));  \
  }

GPUFS_CALLS_OF(thread)
GPUFS_CALLS_OF(warp)
GPUFS_CALLS_OF(block)
