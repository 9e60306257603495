// Squares the numbers of one file into another, which replaces an older one as a whole, or not at
// all. `square`
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include <gpufs/device_array.hpp>
#include <gpufs/gpufs.hpp>
#include <gpufs/launch.cuh>

constexpr std::uint64_t count = 1'000'000;  // numbers of 4 bytes

struct square_numbers {
  const char* from;
  const char* to;
  gpufs::atomic_word<std::int32_t>* error;

  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    constexpr std::uint64_t chunk = 1024;  // numbers
    const auto block = gpufs::this_block();
    auto* const numbers = reinterpret_cast<std::uint32_t*>(block.scratch());  // shared memory
    const std::int32_t in = gpufs::gopen(block, fs, from);
    // Many blocks open the output with O_TRUNC; it is emptied once for each launch. O_GWRONCE: each
    // byte is written once and none is read, so no page of the old content is fetched.
    const std::int32_t out =
        gpufs::gopen(block, fs, to, O_WRONLY | O_CREAT | O_TRUNC | gpufs::O_GWRONCE);
    std::int64_t status = in < 0 ? in : out < 0 ? out : 0;
    for (std::uint64_t first = block.grid_rank() * chunk; status >= 0 && first < count;
         first += block.grid_size() * chunk) {
      const std::uint64_t here = count - first < chunk ? count - first : chunk;
      const auto at = static_cast<std::int64_t>(first * 4);
      status = gpufs::gread(block, fs, in, numbers, here * 4, at);
      for (std::uint64_t i = block.rank(); i < here; i += block.size()) numbers[i] *= numbers[i];
      block.sync();  // all numbers are squared before they are written
      if (status >= 0) status = gpufs::gwrite(block, fs, out, numbers, here * 4, at);
      block.sync();  // ... and written before the next ones are read
    }
    if (in >= 0) (void)gpufs::gclose(block, fs, in);
    // The result of a close of a file that was written tells whether the bytes reached the file.
    const std::int32_t closed = out < 0 ? 0 : gpufs::gclose(block, fs, out);
    if (status >= 0) status = closed;
    if (status < 0 && block.is_leader()) error->store_relaxed(static_cast<std::int32_t>(status));
  }
};

// Makes the new file durable, and puts it in the place of the old one.
struct publish {
  const char* part;
  const char* whole;
  gpufs::atomic_word<std::int32_t>* error;

  GPUFS_HD void operator()(const gpufs::mount_ref& fs) const {
    const auto block = gpufs::this_block();
    const std::int32_t fd = gpufs::gopen(block, fs, part, O_RDWR);
    std::int32_t status = fd < 0 ? fd : gpufs::gfsync(block, fs, fd);
    const std::int32_t closed = fd < 0 ? 0 : gpufs::gclose(block, fs, fd);
    if (status == 0) status = closed;
    if (status == 0) status = gpufs::grename(block, fs, part, whole);
    if (status < 0 && block.is_leader()) error->store_relaxed(status);
  }
};

int main() try {
  namespace files = std::filesystem;
  const files::path folder = files::temp_directory_path() / "gpufs-tutorial";
  files::create_directories(folder);
  {
    std::vector<std::uint32_t> numbers(count);
    for (std::uint32_t i = 0; i < count; ++i) numbers[i] = i;
    std::ofstream(folder / "numbers", std::ios::binary)
        .write(reinterpret_cast<const char*>(numbers.data()), count * 4);
  }
  gpufs::mount_options options;
#if !defined(__CUDACC__)
  options.device = gpufs::device_kind::cpu;
#endif
  options.root = folder;  // kernels reach nothing outside; paths are relative to it
  options.cache_bytes = 16 << 20;
  gpufs::mount mount(options);

  const gpufs::device_path from(mount, "numbers"), part(mount, "squares.part"),
      whole(mount, "squares");
  const gpufs::device_array<gpufs::atomic_word<std::int32_t>> error(mount, 1);
  gpufs::launch(mount, {.blocks = 64, .threads = 256, .scratch_bytes = 4096},
                square_numbers{from.data(), part.data(), error.data()});
  // Launches on one stream run one after the other.
  gpufs::launch(mount, {.blocks = 1, .threads = 32},
                publish{part.data(), whole.data(), error.data()});
  if (const int code = error.download()[0].load_relaxed(); code != 0)
    throw gpufs::error(-code, "square", (folder / "squares").native());
  mount.sync_folder(".");  // the rename is on the disk
  mount.unmount();         // throws if bytes of any file were lost

  std::ifstream squares(folder / "squares", std::ios::binary);
  std::vector<std::uint32_t> got(count);
  squares.read(reinterpret_cast<char*>(got.data()), count * 4);
  files::remove_all(folder);
  std::printf("%u squared is %u\n", 54'321u, got[54'321]);
  return got[54'321] == 54'321u * 54'321u ? 0 : 1;
} catch (const gpufs::error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
