// Compiled by nvcc if there is one, otherwise by the host compiler: once, because a kernel takes
// ptxas many seconds.
#include "job/job.hpp"

namespace gpufs::job {
namespace {

// Reads a part of a file into device memory, one piece a block.
struct read_part : tuned_shape {
  static constexpr std::uint64_t piece_bytes = std::uint64_t{64} << 10;
  const char* path;
  std::uint32_t file;
  std::uint64_t offset, bytes;
  char* to;
  failure failed;

  GPUFS_HD read_part(const char* p, std::uint32_t f, std::uint64_t o, std::uint64_t n, char* t,
                     failure w)
      : path(p), file(f), offset(o), bytes(n), to(t), failed(w) {}
  GPUFS_HD std::uint64_t pieces() const { return ceiling(bytes, piece_bytes); }
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const std::int32_t fd = open_to_read(g, fs, path, file, failed);
    if (fd < 0) return;
    by_turns(bytes, piece_bytes, [&](std::uint64_t begin, std::uint64_t end) {
      if (g.all(failed.told())) return;  // after an error each call might wait for its timeout
      (void)read_all(g, fs, fd, file, failed, to + begin, end - begin, offset + begin);
    });
    (void)gclose(g, fs, fd);  // a file that is only read
  }
};

}  // namespace

void job::read(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes, void* to) const {
  const read_part kernel(path(file), file, offset, bytes, static_cast<char*>(to), failed());
  launch(kernel, kernel.pieces(), many());
}

}  // namespace gpufs::job
