// Two streams write a file each, and a third kernel reads both when they are done. `streams`
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include <gpufs/device_array.hpp>
#include <gpufs/gpufs.hpp>
#include <gpufs/launch.cuh>

// Streams on a GPU. A launch on the CPU device has ended when it returns, so it needs none.
class two_streams {
 public:
#if defined(__CUDACC__)
  two_streams() {
    for (cudaStream_t& s : streams_) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&done_, cudaEventDisableTiming);
  }
  ~two_streams() {
    cudaEventDestroy(done_);
    for (const cudaStream_t s : streams_) cudaStreamDestroy(s);
  }
  void* get(int number) const { return streams_[number]; }
  // What is launched on stream 0 from now on waits for what was launched on stream 1.
  void join() {
    cudaEventRecord(done_, streams_[1]);
    cudaStreamWaitEvent(streams_[0], done_);
  }

 private:
  std::array<cudaStream_t, 2> streams_{};
  cudaEvent_t done_{};
#else
  void* get(int) const { return nullptr; }
  void join() {}
#endif
};

struct results {
  gpufs::atomic_word<std::uint64_t> sum;
  gpufs::atomic_word<std::int32_t> error;
};

constexpr std::uint64_t records = 10'000;  // in each file, of 8 bytes

// Appends records: all warps write to the end of the file, and no two to the same place.
struct append_records {
  const char* path;
  std::uint64_t first;
  results* all;

  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const auto warp = gpufs::this_warp();
    const std::int32_t fd = gpufs::gopen(warp, fs, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
    if (fd < 0) {
      all->error.store_relaxed(fd);
      return;
    }
    for (std::uint64_t i = warp.grid_rank(); i < records; i += warp.grid_size()) {
      const std::uint64_t record = first + i;
      const auto thread = gpufs::this_thread();
      // One thread of the warp writes from its own memory.
      if (warp.is_leader() && gpufs::gwrite(thread, fs, fd, &record, sizeof record, 0) !=
                                  static_cast<std::int64_t>(sizeof record))
        all->error.store_relaxed(-EIO);
      warp.sync();
    }
    const std::int32_t closed = gpufs::gclose(warp, fs, fd);
    if (closed < 0) all->error.store_relaxed(closed);
  }
};

struct add_records {
  const char* first;
  const char* second;
  results* all;

  GPUFS_HD void add(const gpufs::mount_ref& fs, const char* path) const {
    const auto warp = gpufs::this_warp();
    const std::int32_t fd = gpufs::gopen(warp, fs, path);  // sees all that was written before
    std::uint64_t sum = 0;
    {
      const gpufs::view<std::uint64_t> file(fs, fd);  // the file as an array; ends before gclose
      const auto thread = gpufs::this_thread();
      for (std::uint64_t i = thread.grid_rank(); i < file.size(); i += thread.grid_size())
        sum += file[i];
      if (fd < 0 || file.error() != 0) all->error.store_relaxed(fd < 0 ? fd : file.error());
    }
    all->sum.add_relaxed(sum);
    warp.sync();
    if (fd >= 0) (void)gpufs::gclose(warp, fs, fd);
  }
  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    add(fs, first);
    add(fs, second);
  }
};

int main() try {
  namespace files = std::filesystem;
  const files::path folder = files::temp_directory_path() / "gpufs-tutorial-streams";
  files::create_directories(folder);
  gpufs::mount_options options;
#if !defined(__CUDACC__)
  options.device = gpufs::device_kind::cpu;
#endif
  options.root = folder;
  options.cache_bytes = 16 << 20;
  gpufs::mount mount(options);

  const gpufs::device_path a(mount, "a"), b(mount, "b");
  const gpufs::device_array<results> all(mount, 1);
  two_streams streams;
  // One mount serves any number of streams at the same time.
  gpufs::launch(mount, {.blocks = 8, .threads = 128, .stream = streams.get(0)},
                append_records{a.data(), 0, all.data()});
  gpufs::launch(mount, {.blocks = 8, .threads = 128, .stream = streams.get(1)},
                append_records{b.data(), records, all.data()});
  streams.join();
  gpufs::launch(mount, {.blocks = 8, .threads = 128, .stream = streams.get(0)},
                add_records{a.data(), b.data(), all.data()});

  const results got = all.download()[0];
  if (const int code = got.error.load_relaxed(); code != 0)
    throw gpufs::error(-code, "streams", folder.native());
  mount.unmount();
  files::remove_all(folder);
  const std::uint64_t expected = records * (2 * records - 1);
  std::printf("the records add up to %llu\n",
              static_cast<unsigned long long>(got.sum.load_relaxed()));
  return got.sum.load_relaxed() == expected ? 0 : 1;
} catch (const gpufs::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
