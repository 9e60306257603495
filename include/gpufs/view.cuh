// view<T>: a file as an array that pages in on access.
#pragma once

#include "gpufs/gpufs.cuh"

namespace gpufs {

// A file, from `offset` on, as an array of T (trivially copyable, of any size and alignment). Each thread reads for
// itself, wherever it is in its code; threads of a warp that read the same page at the same moment fault once.
// Holds no pin between accesses. Refers to `fs`, which must outlive it. The descriptor stays the caller's and must outlive the view.
template <class T>
class view {
 public:
  GPUFS_HD view(const mount_ref& fs, std::int32_t fd, std::uint64_t offset = 0) : fs_(&fs), offset_(offset) {
    const detail::found_file found = detail::find_file(fs, this_thread(), fd);
    file_ = found.view;
    error_ = found.error;
  }

  // Number of whole T in the file behind `offset`, as of its open; 0 for a bad descriptor.
  GPUFS_HD std::uint64_t size() const { return file_.size > offset_ ? (file_.size - offset_) / sizeof(T) : 0; }

  // 0, or the -errno of the first access that failed: as gread, and -EINVAL for an index that is not below size().
  GPUFS_HD std::int32_t error() const { return error_; }

  // Element i, or T{} when it cannot be read; then error() says why. Waits as gread.
  GPUFS_HD T operator[](std::uint64_t i) const {
    T value{};
    if (i >= size()) {
      if (error_ == 0) error_ = -EINVAL;
      return value;
    }
    std::uint64_t at = offset_ + i * sizeof(T);
    auto* to = reinterpret_cast<char*>(&value);
    std::uint64_t left = sizeof(T);
    while (left != 0) {
      const std::uint64_t n = read_within_page(at, to, left);
      if (n == 0) return T{};
      at += n;
      to += n;
      left -= n;
    }
    return value;
  }

 private:
  // Copies what the page that holds `at` has of the next `bytes`; 0 on error.
  GPUFS_HD std::uint64_t read_within_page(std::uint64_t at, char* to, std::uint64_t bytes) const {
    const std::uint64_t page = at >> fs_->layout.page_shift;
    const std::uint64_t within = at - (page << fs_->layout.page_shift);
    const warp_group peers = sharing(page);
    page_cache<warp_group> cache(*fs_, peers, file_.record);
    const page_pin pin =
        cache.acquire({file_.version, page}, detail::page_loader<warp_group>(*fs_, peers, file_, page));
    if (pin.valid < 0) {
      if (error_ == 0) error_ = pin.valid;
      return 0;
    }
    const std::uint64_t room = fs_->layout.page_bytes() - within;
    const std::uint64_t n = bytes < room ? bytes : room;
    const bool there = within + n <= static_cast<std::uint64_t>(pin.valid);
    if (there) {
      copy_from_frame(this_thread(), to, fs_->page(pin.frame) + within, n);
    } else if (error_ == 0) {
      error_ = -EINVAL;  // the file was truncated since it was opened
    }
    cache.release(pin.frame);
    return there ? n : 0;
  }

  // The lanes that are here now and want the same page of the same version: they fault as one group.
  GPUFS_HD warp_group sharing(std::uint64_t page) const { return this_warp().matching(page, file_.version); }

  const mount_ref* fs_;
  detail::file_view file_{};
  std::uint64_t offset_;
  mutable std::int32_t error_ = 0;
};

}  // namespace gpufs
