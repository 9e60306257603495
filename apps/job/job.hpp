// The host's side of an application's kernels: passes the paths of files, and reports errors.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/device_parts.hpp"
#include "gpufs/base/limits.hpp"
#include "gpufs/device_array.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "job/files.cuh"
#include "job/mount_facts.hpp"

namespace gpufs::job {

// Kernels that work on some files together. Waits only where a comment says so.
class job {
 public:
  // `alone`: no other thread of the process calls the CUDA driver meanwhile, so loads may use the
  // copy engine (launch_shape::bulk). `what`: text for errors. `table`: data for kernels, at
  // table(). `memory_bytes`: zeroed memory, at memory(). Throws gpufs::error.
  job(mount& m, std::string what, std::vector<std::string> paths, bool alone,
      std::span<const std::byte> table = {}, std::size_t memory_bytes = 0)
      : mount_(m), what_(std::move(what)), paths_(std::move(paths)), alone_(alone),
        brought_(brought_along(paths_, table)),
        device_(m, word_begin() + device_parts::alignment + memory_bytes) {
    mount_.copy_to_device(device_.data(), brought_.data(), brought_.size());
  }

  mount& of() const { return mount_; }
  failure failed() const {
    return {reinterpret_cast<atomic_word<std::uint64_t>*>(device_.data() + word_begin())};
  }
  // For kernels.
  gpufs::job::file file(std::uint32_t number) const { return {path(number), number, failed()}; }
  // The files' paths, in memory that kernels can read.
  path_table paths() const { return {device_.data()}; }
  const char* path(std::size_t file) const {
    std::uint64_t begin = 0;
    std::memcpy(&begin, brought_.data() + file * sizeof begin, sizeof begin);
    return device_.data() + begin;
  }
  template <class T>
  const T* table() const {
    return reinterpret_cast<const T*>(device_.data() + paths_.size() * sizeof(std::uint64_t));
  }
  char* memory() const { return device_.data() + word_begin() + device_parts::alignment; }

  // One block for each multiprocessor: enough to keep the bus busy with large pieces, and few
  // enough to fit into a cache.
  std::uint32_t few() const { return mount_.multiprocessors(); }
  std::uint32_t many() const {
    return mount_.multiprocessors() * tuned_shape::blocks_per_multiprocessor;
  }

  static constexpr std::uint32_t threads = 256;
  template <class Kernel>
  void launch(const Kernel& kernel, std::uint64_t blocks, std::uint32_t most,
              std::size_t scratch_bytes = 0, std::uint32_t block_threads = threads) const {
    const auto count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(blocks, 1, most));
    gpufs::launch(mount_, {count, block_threads, scratch_bytes, nullptr, alone_}, kernel);
    // The first launch of the next kernel loads it, and the driver waits for that. This kernel may
    // be waiting for the driver.
    if (alone_) mount_.synchronize();
  }

  // For a kernel that plans its launch: `launch_plan shape() const`.
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    launch(kernel, kernel.shape().blocks, kernel.shape().blocks, kernel.shape().scratch_bytes);
  }

  // Waits for the kernels, and throws their error. Returns the first `count` elements at memory().
  template <class T = char>
  std::vector<T> finish(std::size_t count = 0) const {
    mount_.synchronize();
    // Copies the failure word too, which lies before memory(): each copy costs more time than its
    // bytes.
    std::vector<char> bytes(device_parts::alignment + count * sizeof(T));
    mount_.copy_to_host(bytes.data(), device_.data() + word_begin(), bytes.size());
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    if (word != 0) {
      const auto number = static_cast<int>(word & 0xffff'ffff);
      // A kernel may have stored anything there.
      const std::uint64_t file = word >> 32;
      throw error(number, number == ENODATA ? "the file is shorter than it should be" : what_,
                  file < paths_.size() ? paths_[file] : std::string());
    }
    std::vector<T> first(count);
    if (count != 0)
      std::memcpy(first.data(), bytes.data() + device_parts::alignment, count * sizeof(T));
    return first;
  }

 private:
  // The layout of path_table: where each path begins; the table; the paths.
  static std::vector<char> brought_along(const std::vector<std::string>& paths,
                                         std::span<const std::byte> table) {
    const std::size_t begins_bytes = paths.size() * sizeof(std::uint64_t);
    std::vector<char> all(begins_bytes + table.size());
    if (!table.empty()) std::memcpy(all.data() + begins_bytes, table.data(), table.size());
    for (std::size_t n = 0; const std::string& path : paths) {
      if (path.size() > limits::path_bytes_max) throw error(ENAMETOOLONG, "open", path);
      const std::uint64_t begin = all.size();
      std::memcpy(all.data() + n++ * sizeof begin, &begin, sizeof begin);
      all.insert(all.end(), path.c_str(), path.c_str() + path.size() + 1);
    }
    return all;
  }
  // Place of the failure word, after the paths and the table. memory() follows it.
  std::size_t word_begin() const {
    return ceiling(brought_.size(), device_parts::alignment) * device_parts::alignment;
  }

  mount& mount_;
  const std::string what_;
  const std::vector<std::string> paths_;
  const bool alone_;
  const std::vector<char> brought_;
  const device_array<char> device_;
};

}  // namespace gpufs::job
