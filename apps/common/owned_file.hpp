// Host files with an owner: descriptors and mappings.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "gpufs/error.hpp"

namespace gpufs {

class owned_file {
 public:
  explicit owned_file(const std::string& path, int flags = O_RDONLY)
      : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) throw error(errno, "open", path);
  }
  ~owned_file() { close(fd_); }
  owned_file(const owned_file&) = delete;
  owned_file& operator=(const owned_file&) = delete;
  int fd() const { return fd_; }
  std::uint64_t size() const {
    struct stat status{};
    if (fstat(fd_, &status) != 0) throw error(errno, "stat", path_);
    return static_cast<std::uint64_t>(status.st_size);
  }

  // Throws ENODATA at the end of the file.
  void read(char* to, std::uint64_t bytes, std::uint64_t offset) const {
    while (bytes != 0) {
      const ssize_t n = pread(fd_, to, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw error(n < 0 ? errno : ENODATA, "read", path_);
      to += n;
      bytes -= static_cast<std::uint64_t>(n);
      offset += static_cast<std::uint64_t>(n);
    }
  }
  void resize(std::uint64_t bytes) const {
    if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw error(errno, "ftruncate", path_);
  }
  void write(const char* from, std::uint64_t bytes, std::uint64_t offset) const {
    while (bytes != 0) {
      const ssize_t n = pwrite(fd_, from, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw error(n < 0 ? errno : EIO, "write", path_);
      from += n;
      bytes -= static_cast<std::uint64_t>(n);
      offset += static_cast<std::uint64_t>(n);
    }
  }

 private:
  const std::string path_;
  const int fd_;
};

class owned_mapping {
 public:
  // Maps the first `bytes` of a file. Throws ENODATA if the file is shorter. `access`: O_RDONLY or
  // O_RDWR.
  owned_mapping(const std::string& path, std::uint64_t bytes, int access = O_RDONLY)
      : bytes_(bytes) {
    const owned_file file(path, access);
    if (file.size() < bytes) throw error(ENODATA, "the file is shorter than it should be", path);
    const int protection = access == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ;
    void* const p = mmap(nullptr, bytes, protection, MAP_SHARED, file.fd(), 0);
    if (p == MAP_FAILED) throw error(errno, "mmap", path);
    data_ = static_cast<char*>(p);
  }
  ~owned_mapping() { munmap(data_, bytes_); }
  owned_mapping(const owned_mapping&) = delete;
  owned_mapping& operator=(const owned_mapping&) = delete;
  char* data() const { return data_; }

 private:
  const std::uint64_t bytes_;
  char* data_;
};

// Maps pages of the page cache into a mapping, many at a time.
inline void populate([[maybe_unused]] const void* begin, [[maybe_unused]] const void* end) {
#if defined(MADV_POPULATE_READ)
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  (void)madvise(reinterpret_cast<void*>(first), reinterpret_cast<std::uintptr_t>(end) - first,
                MADV_POPULATE_READ);
#endif
}

}  // namespace gpufs
