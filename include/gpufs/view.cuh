// view<T>: a file as an array that pages in on access.
#pragma once

#include "gpufs/cache/glance.cuh"
#include "gpufs/gpufs.cuh"

namespace gpufs {

// A file, from `offset` on, as an array of T (trivially copyable, of any size and alignment). Each
// thread reads for itself, wherever it is in its code; threads of a warp that read the same page at
// the same moment fault once. Holds no pin between accesses, and takes none for what is in the
// cache, if T consists of whole words of 4 or 8 bytes that are aligned in the file. Such hits are
// counted when the view is destroyed. Refers to `fs`, which must outlive it. The descriptor stays
// the caller's and must outlive the view.
template <class T>
class view {
 public:
  GPUFS_HD view(const mount_ref& fs, std::int32_t fd, std::uint64_t offset = 0) : fs_(&fs) {
    const detail::found_file found = detail::find_file(fs, this_thread(), fd, access_read);
    own_ = {found.view, offset, found.error, 0};
  }

  GPUFS_HD ~view() {
    if (own_.hits == 0) return;
    fs_->counters().add(counter::hits, own_.hits);
    fs_->counts_of(own_.file.record).hits.add_relaxed(own_.hits);
  }
  // A copy begins to count anew.
  GPUFS_HD view(const view& other) : fs_(other.fs_), own_(other.own_) { own_.hits = 0; }
  view& operator=(const view&) = delete;

  // Number of whole T in the file behind `offset`, as of its open; 0 for a bad descriptor.
  GPUFS_HD std::uint64_t size() const { return own_.size(); }

  // 0, or the -errno of the first access that failed: as gread, and -EINVAL for an index that is
  // not below size().
  GPUFS_HD std::int32_t error() const { return own_.error; }

  // Element i, or T{} when it cannot be read; then error() says why. Waits as gread.
  GPUFS_HD T operator[](std::uint64_t i) const {
    const std::uint64_t indices[1] = {i};
    T values[1];
    read(indices, values);
    return values[0];
  }

  // Elements indices[0], indices[1], ... as operator[] gives them one by one, but for those in the
  // cache the latencies are one: two to eight at a time keep the memory busy with fewer threads.
  template <unsigned N>
  GPUFS_HD void read(const std::uint64_t (&indices)[N], T (&values)[N]) const {
    static_assert(N <= 32, "a bit for each element");
    std::uint32_t missing = ~0u >> (32 - N);
    if constexpr (detail::glances && sizeof(T) % sizeof(word) == 0 && sizeof(T) <= glance_bytes_max)
      missing = read_at_a_glance(indices, values);
    if (missing == 0) return;
    // All that lives goes through memory by hand, here. The compiler would keep there, for good,
    // what does not fit into the registers that a call leaves alone, and every hit would load and
    // store it.
    errand<N> e{own_, {}, {}, missing};
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      e.indices[i] = indices[i];
      if ((missing >> i & 1) == 0) e.values[i] = values[i];
    }
    read_missing(*fs_, e);
    own_ = e.own;
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) values[i] = e.values[i];
  }

 private:
  static constexpr std::size_t glance_bytes_max = 64;  // more words would not stay in registers
  using word = std::conditional_t<sizeof(T) % 8 == 0, std::uint64_t, std::uint32_t>;

  struct state {
    detail::file_view file;
    std::uint64_t offset;
    std::int32_t error;
    std::uint32_t hits;
    GPUFS_HD std::uint64_t size() const {
      return file.size > offset ? (file.size - offset) / sizeof(T) : 0;
    }
  };

  // Returns a bit for each element with which it is not so easy: that crosses pages, or is not in
  // the cache, or was evicted meanwhile. Steps as in find_at_a_glance().
  template <unsigned N>
  GPUFS_HD std::uint32_t read_at_a_glance(const std::uint64_t (&indices)[N], T (&values)[N]) const {
    constexpr unsigned count = sizeof(T) / sizeof(word);
    const std::uint64_t end = size();
    std::uint64_t within[N];
    slot_key keys[N];
    detail::glimpse found[N];
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      const std::uint64_t at = own_.offset + indices[i] * sizeof(T);
      within[i] = at & (fs_->layout.page_bytes() - 1);
      keys[i] = page_key{own_.file.version, at >> fs_->layout.page_shift}.slot();
    }
    detail::find_at_a_glance(*fs_, keys, found);
    word words[N][count];
    bool done[N];
    std::uint64_t all = 0;
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      done[i] = found[i].there && indices[i] < end && within[i] % sizeof(word) == 0 &&
                within[i] + sizeof(T) <= found[i].valid;
      GPUFS_UNROLL
      for (unsigned k = 0; k < count; ++k) {
        words[i][k] = done[i] ? detail::load_at_a_glance<word>(fs_->page(found[i].frame) +
                                                               within[i] + k * sizeof(word))
                              : 0;
        all ^= words[i][k];
      }
    }
    detail::wait_until_read(all);
    std::uint32_t missing = 0;
    GPUFS_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      std::memcpy(&values[i], words[i], sizeof(T));
      if (done[i] && detail::is_still_there(*fs_, found[i])) ++own_.hits;
      else missing |= 1u << i;
    }
    return missing;
  }

  template <unsigned N>
  struct errand {
    state own;
    std::uint64_t indices[N];
    T values[N];
    std::uint32_t missing;
  };
  template <unsigned N>
  GPUFS_HD GPUFS_OUT_OF_LINE static void read_missing(const mount_ref& fs, errand<N>& e) {
    for (unsigned i = 0; i < N; ++i) {
      if ((e.missing >> i & 1) == 0) continue;
      const element got = e.indices[i] < e.own.size()
                              ? read_pinned(fs, e.own.file, e.own.offset + e.indices[i] * sizeof(T))
                              : element{T{}, -EINVAL};
      e.values[i] = got.value;
      if (e.own.error == 0) e.own.error = got.error;
    }
  }

  struct element {
    T value;
    std::int32_t error;
  };
  // With pins.
  GPUFS_HD static element read_pinned(const mount_ref& fs, const detail::file_view& file,
                                      std::uint64_t at) {
    element e{};
    auto* to = reinterpret_cast<char*>(&e.value);
    std::uint64_t left = sizeof(T);
    while (left != 0) {
      const std::int64_t n = read_within_page(fs, file, at, to, left);
      if (n < 0) return {T{}, static_cast<std::int32_t>(n)};
      at += static_cast<std::uint64_t>(n);
      to += n;
      left -= static_cast<std::uint64_t>(n);
    }
    return e;
  }

  // Copies what the page that holds `at` has of the next `bytes`; or -errno.
  GPUFS_HD static std::int64_t read_within_page(const mount_ref& fs, const detail::file_view& file,
                                                std::uint64_t at, char* to, std::uint64_t bytes) {
    const std::uint64_t page = at >> fs.layout.page_shift;
    const std::uint64_t within = at - (page << fs.layout.page_shift);
    // The lanes that are here now and want the same page of the same version: they fault as one
    // group.
    const lane_group peers = converged_lanes().matching(page, file.version);
    page_cache<lane_group> cache(fs, peers, file.record);
    const page_pin pin =
        cache.acquire({file.version, page}, detail::page_loader<lane_group>(fs, peers, file, page));
    if (pin.valid < 0) return pin.valid;
    const std::uint64_t room = fs.layout.page_bytes() - within;
    const std::uint64_t n = bytes < room ? bytes : room;
    const bool there = within + n <= static_cast<std::uint64_t>(pin.valid);
    if (there) copy_from_frame(this_thread(), to, fs.page(pin.frame) + within, n);
    cache.release(pin.frame);
    return there ? static_cast<std::int64_t>(n)
                 : -EINVAL;  // the file was truncated since it was opened
  }

  const mount_ref* fs_;
  mutable state own_;
};

}  // namespace gpufs
