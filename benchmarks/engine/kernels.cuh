// The kernels that read through gpufs.
#pragma once

#include "common/tuned_shape.hpp"
#include "engine/use.cuh"
#include "gpufs/gpufs.cuh"

namespace gpufs::bench {

// Arguments of every kernel that reads or writes chunks.
struct task {
  std::int32_t fd;
  order where;
  std::uint64_t chunk_bytes;
  std::uint64_t operations;
  tally* told;

  GPUFS_HD std::uint64_t offset(std::uint64_t i) const { return where.position(i) * chunk_bytes; }
  GPUFS_HD void fail() const { told->wrong_bytes.add_relaxed(chunk_bytes); }
};

// Returns the group's part of the block's scratch memory.
GPUFS_HD inline char* own_scratch(const warp_group&, std::uint64_t bytes) {
  return block_group::scratch() + block_group::rank() / 32 * bytes;
}
GPUFS_HD inline char* own_scratch(const block_group&, std::uint64_t) {
  return block_group::scratch();
}

// Collective of a warp: maps bytes that lie in one page, uses them, and unmaps them.
template <class Use>
GPUFS_HD void use_mapped(const warp_group& warp, const mount_ref& fs, const task& work,
                         std::uint64_t at, std::uint64_t bytes, Use& use) {
  const mapping m = gmmap(warp, fs, work.fd, static_cast<std::int64_t>(at), bytes);
  if (m.bytes == static_cast<std::int64_t>(bytes)) use.take(warp, m.data, bytes, at / 8);
  else if (warp.is_leader()) work.fail();
  (void)gmunmap_unfenced(warp, fs, m, use.made());
}

template <class Use>
struct map_chunks : tuned_shape {
  task work;
  GPUFS_HD explicit map_chunks(const task& w) : work(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group warp = this_warp();
    Use use;
    for (std::uint64_t i = warp.grid_rank(); i < work.operations; i += warp.grid_size())
      use_mapped(warp, fs, work, work.offset(i), work.chunk_bytes, use);
    use.finish(work.told);
  }
};

template <class Use>
struct map_each_chunk : tuned_shape {
  task work;
  GPUFS_HD explicit map_each_chunk(const task& w) : work(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group warp = this_warp();
    const std::uint64_t bytes = work.chunk_bytes;
    Use use;
    for (std::uint64_t first = warp.grid_rank() * warp.size(); first < work.operations;
         first += warp.grid_size() * warp.size()) {
      const bool mine = first + warp.rank() < work.operations;
      const std::uint64_t at = mine ? work.offset(first + warp.rank()) : 0;
      const mapping m =
          gmmap_each(warp, fs, work.fd, static_cast<std::int64_t>(at), mine ? bytes : 0);
      const bool whole = m.bytes == static_cast<std::int64_t>(bytes);
      if (mine && !whole) work.fail();
      const auto data = reinterpret_cast<std::uintptr_t>(whole ? m.data : nullptr);
      for (std::uint32_t k = 0; k < warp.size(); ++k) {
        const auto* from = reinterpret_cast<const char*>(warp.from(data, k));
        const std::uint64_t word = warp.from(at, k) / 8;
        if (from != nullptr) use.take(warp, from, bytes, word);
      }
      (void)gmunmap_each_unfenced(warp, fs, m, use.made());
    }
    use.finish(work.told);
  }
};

template <class Use>
struct map_advised_chunks : tuned_shape {
  task work;
  GPUFS_HD explicit map_advised_chunks(const task& w) : work(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group block = this_block();
    const warp_group warp = block.warp();
    const std::uint64_t page_bytes = fs.layout.page_bytes();
    Use use;
    for (std::uint64_t i = block.grid_rank(); i < work.operations; i += block.grid_size()) {
      const std::uint64_t at = work.offset(i);
      (void)gfadvise(block, fs, work.fd, static_cast<std::int64_t>(at), work.chunk_bytes,
                     POSIX_FADV_WILLNEED);
      for (std::uint64_t of = block.warp_rank() * page_bytes; of < work.chunk_bytes;
           of += block.warp_count() * page_bytes)
        use_mapped(warp, fs, work, at + of, page_bytes, use);
    }
    use.finish(work.told);
  }
};

template <class Group, class Use>
struct read_chunks : tuned_shape {
  task work;
  GPUFS_HD explicit read_chunks(const task& w) : work(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const Group group;
    Use use;
    const std::uint64_t bytes = work.chunk_bytes;
    char* const to = own_scratch(group, bytes);
    for (std::uint64_t i = group.grid_rank(); i < work.operations; i += group.grid_size()) {
      const std::uint64_t at = work.offset(i);
      const std::int64_t got = gread(group, fs, work.fd, to, bytes, static_cast<std::int64_t>(at));
      if (got != static_cast<std::int64_t>(bytes)) {
        if (group.is_leader()) work.fail();
      } else if constexpr (Use::compares) {
        use.take(group, to, bytes, at / 8);
        group.sync();  // before the next gread overwrites the bytes
      }
    }
    use.finish(work.told);
  }
};

// As many adjacent threads as a record has words read record i. `Together`: records at a time.
template <class Use, unsigned Together>
struct view_words : tuned_shape {
  task work;
  std::uint32_t record_shift;  // log2 of the words of a record
  GPUFS_HD view_words(const task& w, std::uint32_t shift) : work(w), record_shift(shift) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const thread_group thread = this_thread();
    const view<std::uint64_t> file(fs, work.fd);
    Use use;
    const std::uint64_t words = work.operations << record_shift;
    const std::uint64_t stride = thread.grid_size();
    std::uint64_t i = thread.grid_rank();
    for (; i + (Together - 1) * stride < words; i += Together * stride) {
      std::uint64_t indices[Together];
      std::uint64_t values[Together];
      GPUFS_UNROLL
      for (unsigned k = 0; k < Together; ++k) indices[k] = word_of(i + k * stride);
      file.read(indices, values);
      GPUFS_UNROLL
      for (unsigned k = 0; k < Together; ++k) use.take_word(values[k], indices[k]);
    }
    for (; i < words; i += stride) use.take_word(file[word_of(i)], word_of(i));
    if (file.error() != 0) work.fail();
    use.finish(work.told);
  }

 private:
  GPUFS_HD std::uint64_t word_of(std::uint64_t i) const {
    const std::uint64_t within = i & ((std::uint64_t{1} << record_shift) - 1);
    return (work.where.position(i >> record_shift) << record_shift) + within;
  }
};

// to[i] = record position(i), one thread for each record, as the gather of tensor libraries.
// check_copy verifies the result.
struct gather_records : tuned_shape {
  task work;
  char* to;
  GPUFS_HD gather_records(const task& w, char* t) : work(w), to(t) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const thread_group thread = this_thread();
    const std::uint64_t bytes = work.chunk_bytes;
    for (std::uint64_t i = thread.grid_rank(); i < work.operations; i += thread.grid_size()) {
      const auto at = static_cast<std::int64_t>(work.offset(i));
      if (gread(thread, fs, work.fd, to + i * bytes, bytes, at) != static_cast<std::int64_t>(bytes))
        work.fail();
    }
  }
};

struct open_kernel {
  const char* path;
  std::int32_t flags;
  std::int32_t* fd;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const std::int32_t opened = gopen(this_warp(), fs, path, flags, 0644);
    if (this_warp().is_leader()) *fd = opened;
  }
};

struct close_kernel : tuned_shape {
  std::int32_t fd;
  tally* told;
  GPUFS_HD close_kernel(std::int32_t f, tally* t) : fd(f), told(t) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group block = this_block();
    if (fd >= 0 && gclose(block, fs, fd) != 0 && block.is_leader())
      told->wrong_bytes.add_relaxed(1);
  }
};

// Writes chunk position(i) of the file. The source is the same place in `from`, or the warp's
// scratch memory if `from` is null. Few warps with many registers: spilled values would compete in
// the cache with the bytes that are written.
struct write_chunks : tuned_shape {
  static constexpr int blocks_per_multiprocessor = 3;
  task work;
  const char* from;
  GPUFS_HD write_chunks(const task& w, const char* f) : work(w), from(f) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group warp = this_warp();
    const std::uint64_t bytes = work.chunk_bytes;
    const char* const own = own_scratch(warp, bytes);
    for (std::uint64_t i = warp.grid_rank(); i < work.operations; i += warp.grid_size()) {
      const std::uint64_t at = work.offset(i);
      const char* const data = from == nullptr ? own : from + at;
      const std::int64_t put =
          gwrite(warp, fs, work.fd, data, bytes, static_cast<std::int64_t>(at));
      if (put != static_cast<std::int64_t>(bytes) && warp.is_leader()) work.fail();
    }
  }
};

// Touches one page in each extent.
struct touch_kernel {
  std::int32_t fd;
  std::uint64_t count, stride;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group warp = this_warp();
    for (std::uint64_t i = warp.grid_rank(); i < count; i += warp.grid_size()) {
      const mapping m = gmmap(warp, fs, fd, static_cast<std::int64_t>(i * stride), 1);
      (void)gmunmap(warp, fs, m);
    }
  }
};

// Compares the bytes while it reads them. The host limits small files, so the check does not change
// the time.
struct small_files_kernel : tuned_shape {
  const char* paths;  // `path_stride` bytes each
  std::uint64_t path_stride;
  std::uint64_t first, count;
  tally* told;
  GPUFS_HD small_files_kernel(const char* p, std::uint64_t stride, std::uint64_t f, std::uint64_t n,
                              tally* t)
      : paths(p), path_stride(stride), first(f), count(n), told(t) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group warp = this_warp();
    comparing use;
    for (std::uint64_t i = warp.grid_rank(); i < count; i += warp.grid_size()) {
      if (!read_file(warp, fs, i, use) && warp.is_leader()) {
        told->wrong_bytes.add_relaxed(small_file_bytes(first + i));
      }
    }
    use.finish(told);
  }

 private:
  GPUFS_HD bool read_file(const warp_group& warp, const mount_ref& fs, std::uint64_t i,
                          comparing& use) const {
    const std::int32_t fd = gopen(warp, fs, paths + i * path_stride);
    if (fd < 0) return false;
    const std::uint64_t bytes = small_file_bytes(first + i);
    const std::uint64_t first_word = small_file_first_word(first + i);
    std::uint64_t at = 0;
    while (at < bytes) {
      const mapping m = gmmap(warp, fs, fd, static_cast<std::int64_t>(at), bytes - at);
      if (m.bytes <= 0) break;
      use.take(warp, m.data, static_cast<std::uint64_t>(m.bytes), first_word + at / 8);
      (void)gmunmap_unfenced(warp, fs, m, use.made());
      at += static_cast<std::uint64_t>(m.bytes);
    }
    return gclose(warp, fs, fd) == 0 && at == bytes;
  }
};

struct reopen_kernel : tuned_shape {
  const char* path;
  std::uint64_t operations;
  tally* told;
  GPUFS_HD reopen_kernel(const char* p, std::uint64_t n, tally* t)
      : path(p), operations(n), told(t) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group warp = this_warp();
    for (std::uint64_t i = warp.grid_rank(); i < operations; i += warp.grid_size()) {
      const std::int32_t fd = gopen(warp, fs, path);
      if ((fd < 0 || gclose(warp, fs, fd) != 0) && warp.is_leader())
        told->wrong_bytes.add_relaxed(1);
    }
  }
};

}  // namespace gpufs::bench
