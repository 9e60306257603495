// A part of a file in device memory.
#pragma once

#include "job/job.hpp"

namespace gpufs::job {

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

// Reads the part by a kernel, for kernels that are launched later.
struct file_part : device_array<char> {
  file_part(const job& work, std::uint32_t file, std::uint64_t offset, std::uint64_t bytes)
      : device_array(work.of(), bytes) {
    const read_part kernel(work.path(file), file, offset, bytes, data(), work.failed());
    work.launch(kernel, kernel.pieces(), work.many());
  }
};

}  // namespace gpufs::job
