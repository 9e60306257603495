// Prints the start of a file, which a kernel reads. `first [FILE]`
#include <cstdio>
#include <string>

#include <gpufs/device_array.hpp>
#include <gpufs/gpufs.hpp>
#include <gpufs/launch.cuh>

struct read_start {
  const char* path;      // in the memory of the device, as all that a kernel uses
  char* bytes;           // room for 60
  std::int64_t* result;  // how many bytes were read, or -errno

  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const auto block = gpufs::this_block();  // all threads of the block make each call
    const std::int32_t fd = gpufs::gopen(block, fs, path);
    std::int64_t n = fd;
    if (fd >= 0) {
      n = gpufs::gread(block, fs, fd, bytes, 60, 0);  // 60 bytes at offset 0
      (void)gpufs::gclose(block, fs, fd);             // it only read: nothing can be lost
    }
    if (block.is_leader()) *result = n;
  }
};

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : __FILE__;
  gpufs::mount_options options;
#if !defined(__CUDACC__)
  options.device = gpufs::device_kind::cpu;  // a plain C++ compiler makes no code for GPUs
#endif
  gpufs::mount mount(options);  // the page cache, and the host threads that serve it

  const gpufs::device_path device_path(mount, path);
  const gpufs::device_array<char> bytes(mount, 60);
  const gpufs::device_array<std::int64_t> result(mount, 1);
  gpufs::launch(mount, {.blocks = 1, .threads = 64},
                read_start{device_path.data(), bytes.data(), result.data()});

  const std::int64_t n = result.download()[0];  // waits for the kernel
  if (n < 0) throw gpufs::error(static_cast<int>(-n), "gread", path);
  std::printf("%s: \"%.*s\"\n", mount.device_name().c_str(), static_cast<int>(n),
              bytes.download().data());
  return 0;
} catch (const gpufs::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
