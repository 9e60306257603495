// What kernels that work on files need from whoever launches them: the files' names, and a word for what goes wrong.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "device_array.hpp"
#include "gpufs/gpufs.cuh"

namespace gpufs {

// The first thing that went wrong in a job's kernels: 0; or an errno, and in the upper half which of the job's files gave it.
struct failure {
  atomic_word<std::uint64_t>* word;
  // `result`: -errno, or 0 for a file that ends too early.
  template <class Role>
  GPUFS_HD void tell(Role file, std::int64_t result) const {
    std::uint64_t none = 0;
    const auto number = static_cast<std::uint64_t>(result < 0 ? -result : ENODATA);
    (void)word->compare_exchange_relaxed(none, std::uint64_t{static_cast<std::uint32_t>(file)} << 32 | number);
  }
};

// In 64 registers, as every kernel that waits for memory should be.
struct tuned_shape {
  static constexpr int block_threads_max = 256;
  static constexpr int blocks_per_multiprocessor = 4;
};

// The descriptor; less than 0, which is told, if there is none.
template <class Role>
GPUFS_HD std::int32_t open_to_read(const block_group& g, const mount_ref& fs, const char* path, Role file,
                                   const failure& failed) {
  const std::int32_t fd = gopen(g, fs, path, O_RDONLY);
  if (fd < 0 && g.is_leader()) failed.tell(file, fd);
  return fd;
}

// The files of a job: their paths where kernels can read them, and what went wrong with one.
class job_files {
 public:
  job_files(const mount& m, const std::vector<std::string>& paths)
      : mount_(m), paths_(paths), text_(m, joined(paths)), word_(m, 1) {}
  const char* operator[](std::size_t i) const {
    std::size_t begin = 0;
    for (std::size_t before = 0; before < i; ++before) begin += paths_[before].size() + 1;
    return text_.data() + begin;
  }
  failure failed() const { return {word_.data()}; }
  // Waits for the kernels, and throws what went wrong in them; `what` says what they did.
  void finish(const char* what) const {
    mount_.synchronize();
    std::uint64_t word = 0;
    mount_.copy_to_host(&word, word_.data(), sizeof word);
    if (word == 0) return;
    const auto number = static_cast<int>(word & 0xffff'ffff);
    throw error(number, number == ENODATA ? "the file is shorter than it should be" : what, paths_[word >> 32]);
  }

 private:
  static std::vector<char> joined(const std::vector<std::string>& paths) {
    std::vector<char> text;
    for (const std::string& path : paths) {
      if (path.size() > limits::path_bytes_max) throw error(ENAMETOOLONG, "open", path);
      text.insert(text.end(), path.c_str(), path.c_str() + path.size() + 1);
    }
    return text;
  }
  const mount& mount_;
  const std::vector<std::string> paths_;
  const device_array<char> text_;
  const device_array<atomic_word<std::uint64_t>> word_;
};

}  // namespace gpufs
