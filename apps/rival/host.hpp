// What programs for the CPU that do without gpufs have in common: mapped files, and code for the processor that runs it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "gpufs/error.hpp"

// In front of a function: it is compiled for several kinds of processors, and the best is called.
#if defined(__x86_64__)
#define GPUFS_FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GPUFS_FOR_EACH_PROCESSOR
#endif

namespace gpufs::rival {

class mapped_file {
 public:
  // `bytes` from `offset` on. Throws gpufs::error, ENODATA where the file is shorter.
  mapped_file(const std::string& path, std::uint64_t offset, std::uint64_t bytes)
      : bytes_(offset + bytes), offset_(offset) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw error(errno, "open", path);
    struct stat status{};
    const bool is_long = fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_size) >= bytes_;
    if (is_long && bytes_ != 0) data_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
    const int number = is_long ? errno : ENODATA;
    ::close(fd);
    if (!is_long || data_ == MAP_FAILED) throw error(number, "map", path);
  }
  ~mapped_file() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  template <class T>
  const T* numbers() const {
    return reinterpret_cast<const T*>(static_cast<const char*>(data_) + offset_);
  }

 private:
  const std::uint64_t bytes_, offset_;
  void* data_ = nullptr;
};

// Pages of the page cache into the mapping, many at a time.
inline void populate(const void* begin, const void* end) {
#if defined(MADV_POPULATE_READ)
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  (void)madvise(reinterpret_cast<void*>(first), reinterpret_cast<std::uintptr_t>(end) - first, MADV_POPULATE_READ);
#endif
}

}  // namespace gpufs::rival
