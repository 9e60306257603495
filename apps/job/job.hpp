// The host's side of an application's kernels: where they find the paths of their files, and what they tell.
#pragma once

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "device_array.hpp"
#include "gpufs/base/limits.hpp"
#include "gpufs/launch.cuh"
#include "job/files.cuh"
#include "job/mount_facts.hpp"

namespace gpufs::job {

// Kernels that work on some files together. Waits only where it says so.
class job {
 public:
  // `alone`: no other thread of the process calls the CUDA driver meanwhile, so the copy engine may bring what is read (launch_shape::bulk).
  // `what`: of which errors speak. Throws gpufs::error.
  job(const mount& m, std::string what, std::vector<std::string> paths, bool alone)
      : mount_(m), what_(std::move(what)), paths_(std::move(paths)), alone_(alone), text_(m, joined(paths_)),
        word_(m, 1) {
    for (std::size_t at = 0; const std::string& path : paths_) {
      begins_.push_back(at);
      at += path.size() + 1;
    }
  }

  const mount& of() const { return mount_; }
  failure failed() const { return {word_.data()}; }
  // For kernels.
  gpufs::job::file file(std::uint32_t number) const { return {path(number), number, failed()}; }
  // A file's path, where kernels can read it.
  const char* path(std::size_t file) const { return text_.data() + begins_[file]; }

  // A block for each multiprocessor: enough to keep the bus busy with large pieces, and few enough that they have room in a cache.
  std::uint32_t few() const { return mount_.multiprocessors(); }
  std::uint32_t many() const { return mount_.multiprocessors() * tuned_shape::blocks_per_multiprocessor; }

  static constexpr std::uint32_t threads = 256;
  template <class Kernel>
  void launch(const Kernel& kernel, std::uint64_t blocks, std::uint32_t most, std::size_t scratch_bytes = 0,
              std::uint32_t block_threads = threads) const {
    const auto count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(blocks, 1, most));
    gpufs::launch(mount_, {count, block_threads, scratch_bytes, nullptr, alone_}, kernel);
    // The first launch of the next kernel loads it, for which the driver waits; this one may be waiting for the driver.
    if (alone_) mount_.synchronize();
  }

  // Of a kernel that knows how: `launch_plan shape() const`.
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    launch(kernel, kernel.shape().blocks, kernel.shape().blocks, kernel.shape().scratch_bytes);
  }

  // Reads `count` parts of a file, `stride` bytes from begin to begin, one behind another into memory of the device.
  void read(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes, std::uint64_t stride, std::uint64_t count,
            void* to) const {
    if (stride == bytes) bytes *= std::exchange(count, 1);
    const read_parts kernel(path(file), file, offset, bytes, stride, count, static_cast<char*>(to), failed());
    launch(kernel, kernel.pieces(), many());
  }
  void read(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes, void* to) const {
    read(file, offset, bytes, bytes, 1, to);
  }

  // Waits for the kernels, and throws what went wrong in them.
  void finish() const {
    mount_.synchronize();
    std::uint64_t word = 0;
    mount_.copy_to_host(&word, word_.data(), sizeof word);
    if (word == 0) return;
    const auto number = static_cast<int>(word & 0xffff'ffff);
    throw error(number, number == ENODATA ? "the file is shorter than it should be" : what_, paths_[word >> 32]);
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
  const std::string what_;
  const std::vector<std::string> paths_;
  const bool alone_;
  std::vector<std::size_t> begins_;
  const device_array<char> text_;
  const device_array<atomic_word<std::uint64_t>> word_;
};

// A part of a file in memory of the device, for kernels that are launched later.
struct file_part : device_array<char> {
  file_part(const job& work, std::uint32_t file, std::uint64_t offset, std::uint64_t bytes)
      : device_array(work.of(), bytes) {
    work.read(file, offset, bytes, data());
  }
};

}  // namespace gpufs::job
