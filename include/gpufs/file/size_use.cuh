// The size of a file that is open for writing, and the calls that rely on it from their beginning
// to their end.
#pragma once

#include "gpufs/cache/inode_state.cuh"

namespace gpufs::detail {

// Size uses: calls that rely on the file's size from their beginning to their end.
// * An append: if the file is cut, its place in the file is no longer its own, and another append
//   may get the same place.
// * The marking of stores in a mapping: it must not reach past the end of the file.
//
// A truncation waits for size uses under way, and new size uses wait for the truncation. Both waits
// end: a truncation ends, and a size use waits only for frames and for the host. Write-back
// continues meanwhile, because the truncation makes `cuts` odd only after its wait.

// Called by one thread.
GPUFS_HD inline void begin_size_use(const mount_ref& fs, std::uint32_t node) {
  atomic_word<std::uint32_t>& users = fs.node(node).size_users;
  // Acquire: pairs with the release of the previous truncation, so the caller sees its size.
  while ((users.fetch_add_before_branch(1) & inode_state::resizing) != 0) {
    (void)users.fetch_add_release(~0u);
    for (std::uint32_t attempt = 0; (users.load_for_wait() & inode_state::resizing) != 0; ++attempt)
      platform::pause(attempt);
    users.end_wait();
  }
}
GPUFS_HD inline void end_size_use(const mount_ref& fs, std::uint32_t node) {
  // Release: pairs with the acquire in wait_for_size_users(), so the truncation sees the size and
  // the marks.
  (void)fs.node(node).size_users.fetch_add_release(~0u);
}
// Called by a truncation; only one at a time gets past the first loop.
GPUFS_HD inline void wait_for_size_users(inode_state& node) {
  for (std::uint32_t attempt = 0;
       (node.size_users.fetch_or_acq_rel(inode_state::resizing) & inode_state::resizing) != 0;
       ++attempt)
    platform::pause(attempt);
  for (std::uint32_t attempt = 0; node.size_users.load_acquire() != inode_state::resizing;
       ++attempt)
    platform::pause(attempt);
}
// Called by the truncation at its end, and by note_other_writes(). Release: pairs with the acquire
// in begin_size_use(), so that the caller sees the new size.
GPUFS_HD inline void let_size_users_begin(inode_state& node) {
  (void)node.size_users.fetch_and_acq_rel(~inode_state::resizing);
}

// Notes that a group may write the file at other places than its end. An append takes its place by
// raising the size first. A write at another offset may fall into that place, without raising the
// size. If the append then failed and lowered the size again, it would hide those bytes. So after
// this note no failed append lowers the size, and this waits for appends that began before it.
// Called by one thread, before the group writes. Waits as a truncation does.
GPUFS_HD inline void note_other_writes(const mount_ref& fs, std::uint32_t number) {
  inode_state& node = fs.node(number);
  // Acquire: the note comes after that wait.
  if (node.other_writes.load_acquire() != 0) return;
  wait_for_size_users(node);
  node.other_writes.store_release(1);
  let_size_users_begin(node);
}

// Takes the place of an append: `bytes` at the end of the file, which then ends after them. Returns
// where it begins; file_bytes_max if the file would get too large, and then nothing has changed.
// Called by one thread, during its size use.
//
// An addition serves many appends faster than a loop of compare-and-exchange. If it makes the size
// larger than a file may be, it is taken back; meanwhile allowed_size() keeps readers of the size
// waiting. Very large appends use the loop, so that sums do not wrap.
GPUFS_HD inline std::uint64_t take_place(inode_state& node, std::uint64_t bytes) {
  if (bytes < std::uint64_t{1} << 31) {
    const std::uint64_t at = node.size.fetch_add_relaxed(bytes);
    if (at < limits::file_bytes_max - bytes) return at;
    node.size.add_relaxed(~bytes + 1);
    return limits::file_bytes_max;
  }
  std::uint64_t at = node.size.load_relaxed();
  do {
    if (at >= limits::file_bytes_max - bytes) return limits::file_bytes_max;
  } while (!node.size.compare_exchange_relaxed(at, at + bytes));
  return at;
}

}  // namespace gpufs::detail
