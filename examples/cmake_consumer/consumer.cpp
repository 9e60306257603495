// Counts the lines of a file with a kernel that reads the file itself: on a GPU if nvcc compiles it
// and there is a GPU, otherwise on the CPU device. `consumer [FILE]`; without a file it reads its
// own source.
#include <cstdio>
#include <cstring>

#include "gpufs/device_array.hpp"
#include "gpufs/launch.cuh"

namespace {

struct count_lines {
  const char* path;     // in the device's memory
  std::int64_t* lines;  // in the device's memory: the count, or -errno

  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const gpufs::thread_group group;
    if (group.grid_rank() != 0) return;
    const std::int32_t fd = gpufs::gopen(group, fs, path);
    if (fd < 0) {
      *lines = fd;
      return;
    }
    char buffer[512];
    std::int64_t count = 0;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    while ((bytes = gpufs::gread(group, fs, fd, buffer, sizeof buffer, offset)) > 0) {
      for (std::int64_t i = 0; i < bytes; ++i) count += buffer[i] == '\n';
      offset += bytes;
    }
    const std::int32_t closed = gpufs::gclose(group, fs, fd);
    *lines = bytes < 0 ? bytes : closed < 0 ? closed : count;
  }
};

}  // namespace

int main(int argc, char** argv) try {
  const char* path = argc > 1 ? argv[1] : __FILE__;
  gpufs::mount_options options;
#if !defined(__CUDACC__)
  options.device = gpufs::device_kind::cpu;
#endif
  options.cache_bytes = 16 << 20;
  gpufs::mount mount(options);

  const gpufs::device_path device_path(mount, path);
  const gpufs::device_array<std::int64_t> counted(mount, 1);
  gpufs::launch(mount, {.blocks = 1, .threads = 32},
                count_lines{device_path.data(), counted.data()});
  const std::int64_t lines = counted.download()[0];

  if (lines < 0) {
    std::fprintf(stderr, "%s: %s\n", path, std::strerror(static_cast<int>(-lines)));
    return 1;
  }
  std::printf("%s: %lld lines, counted on %s\n", path, static_cast<long long>(lines),
              mount.device_name().c_str());
  return lines > 0 ? 0 : 1;
} catch (const gpufs::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
