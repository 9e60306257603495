// view<T>: a file as an array whose pages are loaded on access.
#pragma once

#include "gpufs/cache/glance.cuh"
#include "gpufs/file/open_files.cuh"

namespace gpufs {

// A file, from byte `offset` on, as a read-only array of T (trivially copyable, of any size and
// alignment).
//
// Each thread reads by itself, anywhere in its code: the calls are not collective. Threads of a
// warp that read the same page at the same moment fault once. A view holds no pin between accesses.
// An access to a cached page takes no pin either, if T consists of whole words of 4 or 8 bytes that
// are aligned in the file; such hits are counted when the view is destroyed.
//
// The view keeps a pointer to `fs`, and does not own the descriptor; both must outlive it.
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
  // A copy starts its own count of hits.
  GPUFS_HD view(const view& other) : fs_(other.fs_), own_(other.own_) { own_.hits = 0; }
  view& operator=(const view&) = delete;

  // Number of whole T in the file from `offset` on, as of the construction of the view. 0 for a bad
  // descriptor.
  GPUFS_HD std::uint64_t size() const { return own_.size(); }

  // 0, or the -errno of the first access that failed: as gread; -EINVAL for an index that is not
  // below size().
  GPUFS_HD std::int32_t error() const { return own_.error; }

  // Returns element i, or T{} if it cannot be read; then error() returns the reason. Waits as
  // gread.
  GPUFS_HD T operator[](std::uint64_t i) const {
    const std::uint64_t indices[1] = {i};
    T values[1];
    read(indices, values);
    return values[0];
  }

  // Reads elements indices[0], indices[1], ... as operator[] does. The latencies of elements in the
  // cache overlap: with two to eight elements per call, fewer threads keep the memory busy.
  template <unsigned N>
  GPUFS_HD void read(const std::uint64_t (&indices)[N], T (&values)[N]) const {
    static_assert(N <= 32, "a bit for each element");
    std::uint32_t missing = ~0u >> (32 - N);
    if constexpr (detail::glances && sizeof(T) % sizeof(word) == 0 && sizeof(T) <= glance_bytes_max)
      missing = read_at_a_glance(indices, values);
    if (missing == 0) return;
    // Copies all live values to memory explicitly. Otherwise the compiler would keep in memory all
    // values that do not fit into the registers that a call preserves, and every hit would load and
    // store them.
    spilled_read<N> e{own_, {}, {}, missing};
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

  // Optimistic read, without pins. Returns a bit for each element that needs read_missing(): it
  // spans pages, or is not in the cache, or was evicted during the read. The steps are those of
  // find_at_a_glance().
  template <unsigned N>
  GPUFS_HD std::uint32_t read_at_a_glance(const std::uint64_t (&indices)[N], T (&values)[N]) const {
    constexpr unsigned count = sizeof(T) / sizeof(word);
    const std::uint64_t end = size();
    std::uint64_t within[N];
    slot_key keys[N];
    detail::optimistic_read found[N];
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
  struct spilled_read {
    state own;
    std::uint64_t indices[N];
    T values[N];
    std::uint32_t missing;
  };
  template <unsigned N>
  GPUFS_HD GPUFS_OUT_OF_LINE static void read_missing(const mount_ref& fs, spilled_read<N>& e) {
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
  // Reads one element, with pins.
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

  // Copies the part of [at, at + bytes) that lies in the page of `at`. Returns the bytes copied, or
  // -errno.
  GPUFS_HD static std::int64_t read_within_page(const mount_ref& fs, const detail::file_view& file,
                                                std::uint64_t at, char* to, std::uint64_t bytes) {
    const std::uint64_t page = at >> fs.layout.page_shift;
    const std::uint64_t within = at - (page << fs.layout.page_shift);
    // The threads of the warp that are here now and want the same page of the same version fault as
    // one group.
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
    // With -EINVAL, the file was truncated after it was opened.
    return there ? static_cast<std::int64_t>(n) : -EINVAL;
  }

  const mount_ref* fs_;
  mutable state own_;
};

}  // namespace gpufs
