// view<T>: a file as an array that pages in on access.
#pragma once

#include <cstring>
#include <type_traits>

#include "gpufs/cache/glance.cuh"
#include "gpufs/gpufs.cuh"

namespace gpufs {

// A file, from `offset` on, as an array of T (trivially copyable, of any size and alignment). Each thread reads for
// itself, wherever it is in its code; threads of a warp that read the same page at the same moment fault once.
// Holds no pin between accesses, and takes none for what is in the cache, if T consists of whole words of 4 or 8 bytes that
// are aligned in the file. Such hits are counted when the view is destroyed. Refers to `fs`, which must outlive it. The descriptor stays the caller's and must outlive the view.
template <class T>
class view {
 public:
  GPUFS_HD view(const mount_ref& fs, std::int32_t fd, std::uint64_t offset = 0) : fs_(&fs), offset_(offset) {
    const detail::found_file found = detail::find_file(fs, this_thread(), fd);
    file_ = found.view;
    error_ = found.error;
  }

  GPUFS_HD ~view() {
    if (hits_.count == 0) return;
    fs_->counters().add(counter::hits, hits_.count);
    (void)fs_->file_shard(file_.record).hits.fetch_add_relaxed(hits_.count);
  }
  view(const view&) = default;
  view& operator=(const view&) = delete;

  // Number of whole T in the file behind `offset`, as of its open; 0 for a bad descriptor.
  GPUFS_HD std::uint64_t size() const { return file_.size > offset_ ? (file_.size - offset_) / sizeof(T) : 0; }

  // 0, or the -errno of the first access that failed: as gread, and -EINVAL for an index that is not below size().
  GPUFS_HD std::int32_t error() const { return error_; }

  // Element i, or T{} when it cannot be read; then error() says why. Waits as gread.
  GPUFS_HD T operator[](std::uint64_t i) const {
    const std::uint64_t indices[1] = {i};
    T values[1];
    read(indices, values);
    return values[0];
  }

  // Elements indices[0], indices[1], ... as operator[] gives them one by one, but for those in the cache the latencies are
  // one: two to eight at a time keep the memory busy with fewer threads.
  template <unsigned N>
  GPUFS_HD void read(const std::uint64_t (&indices)[N], T (&values)[N]) const {
    bool done[N] = {};
    if constexpr (sizeof(T) % sizeof(word) == 0 && sizeof(T) <= glance_bytes_max)
      read_at_a_glance(indices, values, done);
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      if (!done[i]) values[i] = read_found_out(indices[i]);
    }
  }

 private:
  static constexpr std::size_t glance_bytes_max = 64;  // more words would not stay in registers
  using word = std::conditional_t<sizeof(T) % 8 == 0, std::uint64_t, std::uint32_t>;

  // Not those with which it is not so easy: that cross pages, or are not in the cache, or were evicted meanwhile. Steps as in
  // find_at_a_glance().
  template <unsigned N>
  GPUFS_HD void read_at_a_glance(const std::uint64_t (&indices)[N], T (&values)[N], bool (&done)[N]) const {
    constexpr unsigned count = sizeof(T) / sizeof(word);
    const std::uint64_t end = size();
    std::uint64_t within[N];
    slot_key keys[N];
    detail::glimpse found[N];
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      const std::uint64_t at = offset_ + indices[i] * sizeof(T);
      within[i] = at & (fs_->layout.page_bytes() - 1);
      keys[i] = page_key{file_.version, at >> fs_->layout.page_shift}.slot();
    }
    detail::find_at_a_glance(*fs_, keys, found);
    word words[N][count];
    std::uint64_t all = 0;
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      done[i] = found[i].there && indices[i] < end && within[i] % sizeof(word) == 0 &&
                within[i] + sizeof(T) <= found[i].valid;
      GPUFS_UNROLL
      for (unsigned k = 0; k < count; ++k) {
        words[i][k] =
            done[i] ? detail::load_at_a_glance<word>(fs_->page(found[i].frame) + within[i] + k * sizeof(word)) : 0;
        all ^= words[i][k];
      }
    }
    detail::wait_until_read(all);
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      done[i] = done[i] && detail::is_still_there(*fs_, found[i]);
      if (!done[i]) continue;
      std::memcpy(&values[i], words[i], sizeof(T));
      ++hits_.count;
    }
  }

  // With pins, if it is an element at all.
  GPUFS_HD T read_found_out(std::uint64_t i) const {
    if (i < size()) return read_pinned(offset_ + i * sizeof(T));
    if (error_ == 0) error_ = -EINVAL;
    return T{};
  }

  GPUFS_HD GPUFS_OUT_OF_LINE T read_pinned(std::uint64_t at) const {
    T value{};
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
  // A copy of a view begins to count anew.
  struct own_count {
    own_count() = default;
    GPUFS_HD own_count(const own_count&) {}
    own_count& operator=(const own_count&) = delete;
    std::uint32_t count = 0;
  };
  mutable own_count hits_;
};

}  // namespace gpufs
