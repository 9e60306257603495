// The same walks over plain memory: what the machine gives to a kernel without a file system.
#pragma once

#include "engine/kernels.cuh"

namespace gpufs::bench {

// Host memory to device memory: to[i] = chunk position(i).
struct pull_chunks : tuned_shape {
  task work;
  const char* from;
  char* to;
  GPUFS_HD pull_chunks(const task& w, const char* f, char* t) : work(w), from(f), to(t) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const warp_group warp = this_warp();
    const std::uint64_t bytes = work.chunk_bytes;
    for (std::uint64_t i = warp.grid_rank(); i < work.operations; i += warp.grid_size()) {
      copy_from_host(warp, to + i * bytes, from + work.offset(i), bytes);
    }
  }
};

// The limit of map_chunks.
struct sum_chunks : tuned_shape {
  task work;
  const char* from;
  GPUFS_HD sum_chunks(const task& w, const char* f) : work(w), from(f) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const warp_group warp = this_warp();
    adding use;
    for (std::uint64_t i = warp.grid_rank(); i < work.operations; i += warp.grid_size()) {
      use.take(warp, from + work.offset(i), work.chunk_bytes, 0);
    }
    use.finish(work.told);
  }
};

// The limit of write_chunks: stores from shared memory.
struct store_chunks : tuned_shape {
  task work;
  char* to;
  GPUFS_HD store_chunks(const task& w, char* t) : work(w), to(t) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const warp_group warp = this_warp();
    const std::uint64_t bytes = work.chunk_bytes;
    const char* const own = own_scratch(warp, bytes);
    for (std::uint64_t i = warp.grid_rank(); i < work.operations; i += warp.grid_size())
      copy_into_page(warp, to + work.offset(i), own, bytes);
  }
};

// The limit of read_chunks: copies into shared memory.
template <class Group>
struct copy_chunks : tuned_shape {
  task work;
  const char* from;
  GPUFS_HD copy_chunks(const task& w, const char* f) : work(w), from(f) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const Group group;
    const std::uint64_t bytes = work.chunk_bytes;
    char* const to = own_scratch(group, bytes);
    for (std::uint64_t i = group.grid_rank(); i < work.operations; i += group.grid_size()) {
      copy_from_frame(group, to, from + work.offset(i), bytes);
      group.sync();  // as a caller needs before it reads what other members copied
    }
  }
};

// The limit of view_words.
struct load_words : tuned_shape {
  task work;
  const char* from;
  std::uint32_t record_shift;
  GPUFS_HD load_words(const task& w, const char* f, std::uint32_t shift)
      : work(w), from(f), record_shift(shift) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const thread_group thread = this_thread();
    const auto* file = reinterpret_cast<const std::uint64_t*>(from);
    adding use;
    const std::uint64_t words = work.operations << record_shift;
    for (std::uint64_t i = thread.grid_rank(); i < words; i += thread.grid_size()) {
      const std::uint64_t within = i & ((std::uint64_t{1} << record_shift) - 1);
      const std::uint64_t word = (work.where.position(i >> record_shift) << record_shift) + within;
      use.take_word(file[word], word);
    }
    use.finish(work.told);
  }
};

// The limit of gather_records.
struct copy_records : tuned_shape {
  task work;
  const char* from;
  char* to;
  GPUFS_HD copy_records(const task& w, const char* f, char* t) : work(w), from(f), to(t) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const thread_group thread = this_thread();
    const std::uint64_t bytes = work.chunk_bytes;
    for (std::uint64_t i = thread.grid_rank(); i < work.operations; i += thread.grid_size()) {
      copy_from_frame(thread, to + i * bytes, from + work.offset(i), bytes);
    }
  }
};

// Checks the result of a copy or a gather: copy[i] must be chunk position(i).
struct check_copy : tuned_shape {
  task work;
  const char* copy;
  GPUFS_HD check_copy(const task& w, const char* c) : work(w), copy(c) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const warp_group warp = this_warp();
    comparing use;
    const std::uint64_t bytes = work.chunk_bytes;
    for (std::uint64_t i = warp.grid_rank(); i < work.operations; i += warp.grid_size()) {
      use.take(warp, copy + i * bytes, bytes, work.offset(i) / 8);
    }
    use.finish(work.told);
  }
};

struct fill_content : tuned_shape {
  char* to;
  std::uint64_t bytes;
  GPUFS_HD fill_content(char* t, std::uint64_t n) : to(t), bytes(n) {}
  GPUFS_HD void operator()(const mount_ref&) const {
    const thread_group thread = this_thread();
    auto* words = reinterpret_cast<std::uint64_t*>(to);
    for (std::uint64_t i = thread.grid_rank(); i < bytes / 8; i += thread.grid_size())
      words[i] = word_at(i);
  }
};

}  // namespace gpufs::bench
