// Counts the lines of a file, which may be larger than the GPU's memory. `count [FILE]`
#include <cstdio>
#include <string>

#include <gpufs/device_array.hpp>
#include <gpufs/gpufs.hpp>
#include <gpufs/launch.cuh>

struct totals {
  gpufs::atomic_word<std::uint64_t> lines;
  gpufs::atomic_word<std::int32_t> error;  // an -errno, or 0
};

struct count_lines {
  const char* path;
  totals* all;

  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    constexpr std::int64_t part = 4096;  // a page: a mapping ends where its page ends
    const auto warp = gpufs::this_warp();
    const std::int32_t fd = gpufs::gopen(warp, fs, path);  // the first warp's open serves them all
    gpufs::file_status status{};
    if (gpufs::gfstat(warp, fs, fd, status) != 0) {  // -EBADF also if the open failed
      all->error.store_relaxed(fd < 0 ? fd : -EBADF);
      return;
    }
    const auto size = static_cast<std::int64_t>(status.size);
    const auto step = static_cast<std::int64_t>(warp.grid_size()) * part;
    std::uint64_t lines = 0;
    for (auto at = static_cast<std::int64_t>(warp.grid_rank()) * part; at < size; at += step) {
      const gpufs::mapping page = gpufs::gmmap(warp, fs, fd, at, part);  // loads it on a miss
      if (page.bytes < 0) all->error.store_relaxed(static_cast<std::int32_t>(page.bytes));
      for (std::int64_t i = warp.rank(); i < page.bytes; i += warp.size())
        lines += page.data[i] == '\n' ? 1 : 0;
      (void)gpufs::gmunmap(warp, fs, page);
    }
    (void)gpufs::gclose(warp, fs, fd);
    lines = warp.sum(lines);
    if (warp.is_leader()) all->lines.add_relaxed(lines);
  }
};

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : __FILE__;
  gpufs::mount_options options;
#if !defined(__CUDACC__)
  options.device = gpufs::device_kind::cpu;
#endif
  options.cache_bytes = 64 << 20;
  gpufs::mount mount(options);

  const gpufs::device_path device_path(mount, path);
  const gpufs::device_array<totals> result(mount, 1);  // zeros
  const unsigned blocks = mount.multiprocessors() * 8;
  gpufs::launch(mount, {.blocks = blocks, .threads = 256},
                count_lines{device_path.data(), result.data()});

  const totals all = result.download()[0];
  if (const int code = all.error.load_relaxed(); code != 0)
    throw gpufs::error(-code, "count", path);
  std::printf("%llu lines\n", static_cast<unsigned long long>(all.lines.load_relaxed()));
  const gpufs::statistics s = mount.stats();
  std::printf("%llu pages loaded directly, %llu by the service, %llu hits\n",
              static_cast<unsigned long long>(s[gpufs::counter::direct_loads]),
              static_cast<unsigned long long>(s[gpufs::counter::staged_loads]),
              static_cast<unsigned long long>(s[gpufs::counter::hits]));
  return 0;
} catch (const gpufs::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
