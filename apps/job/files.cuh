// What the kernels of an application do with whole files. A call does all or nothing, and the first
// error is kept for the host.
#pragma once

#include <fcntl.h>

#include "common/arithmetic.cuh"
#include "common/tuned_shape.hpp"
#include "gpufs/gpufs.cuh"

namespace gpufs::job {

// The first error in a job's kernels. 0: none. Otherwise an errno, with the file's number in the
// upper half, in the host's order.
struct failure {
  atomic_word<std::uint64_t>* word;
  // `result`: -errno, or 0 for a file that ends too early.
  GPUFS_HD void tell(std::uint32_t file, std::int64_t result) const {
    std::uint64_t none = 0;
    const auto number = static_cast<std::uint64_t>(result < 0 ? -result : ENODATA);
    (void)word->compare_exchange_relaxed(none, std::uint64_t{file} << 32 | number);
  }
  GPUFS_HD bool told() const { return word->load_relaxed() != 0; }
};

// The paths of a job's files, in device memory: first where each path begins, relative to `begin`,
// then the paths.
struct path_table {
  const char* begin;
  GPUFS_HD const char* operator[](std::uint32_t file) const {
    return begin + reinterpret_cast<const std::uint64_t*>(begin)[file];
  }
};

// Returns the descriptor. Reports an error and returns a negative number if the open fails.
template <class Group>
GPUFS_HD std::int32_t open_file(const Group& g, const mount_ref& fs, const char* path,
                                std::int32_t flags, std::uint32_t file, const failure& failed) {
  const std::int32_t fd = gopen(g, fs, path, flags);
  if (fd < 0 && g.is_leader()) failed.tell(file, fd);
  return fd;
}
template <class Group>
GPUFS_HD std::int32_t open_to_read(const Group& g, const mount_ref& fs, const char* path,
                                   std::uint32_t file, const failure& failed) {
  return open_file(g, fs, path, O_RDONLY, file, failed);
}
// Each byte is written once, so no page is ever loaded.
template <class Group>
GPUFS_HD std::int32_t open_to_write(const Group& g, const mount_ref& fs, const char* path,
                                    std::uint32_t file, const failure& failed) {
  return open_file(g, fs, path, O_WRONLY | O_GWRONCE, file, failed);
}

// Collective. Reads all bytes. Reports an error and returns false if that is not possible.
template <class Group>
GPUFS_HD bool read_all(const Group& g, const mount_ref& fs, std::int32_t fd, std::uint32_t file,
                       const failure& failed, char* to, std::uint64_t bytes, std::uint64_t at) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::int64_t got =
        gread(g, fs, fd, to + done, bytes - done, static_cast<std::int64_t>(at + done));
    if (got <= 0) {
      if (g.is_leader()) failed.tell(file, got);
      return false;
    }
    done += static_cast<std::uint64_t>(got);
  }
  return true;
}

// Collective. Writes all bytes, or reports the error.
template <class Group>
GPUFS_HD void write_all(const Group& g, const mount_ref& fs, std::int32_t fd, std::uint32_t file,
                        const failure& failed, const char* from, std::uint64_t bytes,
                        std::uint64_t at) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::int64_t put =
        gwrite(g, fs, fd, from + done, bytes - done, static_cast<std::int64_t>(at + done));
    if (put <= 0) {
      if (g.is_leader()) failed.tell(file, put < 0 ? put : -EIO);
      return;
    }
    done += static_cast<std::uint64_t>(put);
  }
}

// Closes a written file. Errors of its write-back appear only here.
template <class Group>
GPUFS_HD void close_written(const Group& g, const mount_ref& fs, std::int32_t fd,
                            std::uint32_t file, const failure& failed) {
  if (const std::int32_t closed = gclose(g, fs, fd); closed < 0 && g.is_leader())
    failed.tell(file, closed);
}

// A file that a kernel has tried to open. Has the calls above and more. Collective. If the file is
// not open, no further error is reported.
class opened {
 public:
  GPUFS_HD opened(const mount_ref& fs, std::int32_t fd, std::uint32_t file, const failure& failed)
      : fs_(fs), fd_(fd), file_(file), failed_(failed) {}
  GPUFS_HD bool is_open() const { return fd_ >= 0; }
  GPUFS_HD std::int32_t descriptor() const { return fd_; }
  GPUFS_HD void tell(std::int64_t result) const { failed_.tell(file_, result); }
  GPUFS_HD bool told() const { return failed_.told(); }
  template <class Group>
  GPUFS_HD bool read_all(const Group& g, void* to, std::uint64_t bytes, std::uint64_t at) const {
    return job::read_all(g, fs_, fd_, file_, failed_, static_cast<char*>(to), bytes, at);
  }
  template <class Group>
  GPUFS_HD void write_all(const Group& g, const void* from, std::uint64_t bytes,
                          std::uint64_t at) const {
    job::write_all(g, fs_, fd_, file_, failed_, static_cast<const char*>(from), bytes, at);
  }
  // Maps a part that lies in one page. Reports an error and returns a mapping of no bytes if not
  // all of it can be mapped.
  template <class Group>
  GPUFS_HD mapping map(const Group& g, std::uint64_t bytes, std::uint64_t at) const {
    const mapping m = gmmap(g, fs_, fd_, static_cast<std::int64_t>(at), bytes);
    if (m.bytes == static_cast<std::int64_t>(bytes)) return m;
    (void)gmunmap(g, fs_, m);
    if (g.is_leader()) tell(m.bytes < 0 ? m.bytes : 0);
    return {nullptr, 0};
  }
  // `made`: as for gmunmap_unfenced.
  template <class Group, class Value>
  GPUFS_HD void unmap(const Group& g, const mapping& m, const Value& made) const {
    (void)gmunmap_unfenced(g, fs_, m, made);
  }
  // bring() prefetches a part of the file. send() starts the write-back of a part that was written.
  template <class Group>
  GPUFS_HD void bring(const Group& g, std::uint64_t bytes, std::uint64_t at) const {
    if (bytes != 0)
      (void)gfadvise(g, fs_, fd_, static_cast<std::int64_t>(at), bytes, POSIX_FADV_WILLNEED);
  }
  template <class Group>
  GPUFS_HD void send(const Group& g, std::uint64_t bytes, std::uint64_t at) const {
    if (bytes != 0)
      (void)gfadvise(g, fs_, fd_, static_cast<std::int64_t>(at), bytes, POSIX_FADV_DONTNEED);
  }
  template <class Group>
  GPUFS_HD void close(const Group& g) const {
    if (is_open()) close_written(g, fs_, fd_, file_, failed_);
  }

 private:
  const mount_ref& fs_;
  const std::int32_t fd_;
  const std::uint32_t file_;
  const failure failed_;
};

// A file of a job, as kernels get it.
struct file {
  const char* path;
  std::uint32_t number;
  failure failed;

  template <class Group>
  GPUFS_HD opened open_to_read(const Group& g, const mount_ref& fs) const {
    return {fs, job::open_to_read(g, fs, path, number, failed), number, failed};
  }
  template <class Group>
  GPUFS_HD opened open_to_write(const Group& g, const mount_ref& fs) const {
    return {fs, job::open_to_write(g, fs, path, number, failed), number, failed};
  }
};

// Calls `part(first, end)` for the block's parts of [0, count), `size` each. Blocks take the parts
// round-robin.
template <class Part>
GPUFS_HD void by_turns(std::uint64_t count, std::uint64_t size, const Part& part) {
  for (std::uint64_t first = block_group::grid_rank() * size; first < count;
       first += block_group::grid_size() * size)
    part(first, count - first < size ? count : first + size);
}

// Collective of the block. Whether a kernel that needs these files continues. It stops after an
// error with any file of the job, because then each call might wait for its timeout.
template <class... Opened>
GPUFS_HD bool goes_on(const block_group& g, const Opened&... files) {
  return (files.is_open() && ...) && !g.all((files.told() || ...));
}

// Collective of the block. Counts to `count`, then starts again. Returns true to the last block,
// which then sees what the other blocks wrote before.
template <class Word>
GPUFS_HD bool is_last(const block_group& g, atomic_word<Word>& word, std::uint64_t count) {
  Word counted = 0;
  g.sync();  // all members have written, before the leader releases it
  if (g.is_leader()) {
    // Release: pairs with the load_acquire of the last block. All blocks only add to the word, so
    // the load acquires what each of them released.
    counted = word.fetch_add_release(1) + 1;
    (void)word.load_acquire();
  }
  return g.broadcast(counted) % count == 0;
}

}  // namespace gpufs::job
