// gclose is made of these.
#pragma once

#include "gpufs/file/open_files.cuh"

namespace gpufs::detail {

// Whether the bytes that the last flush left dirty are lost, with this error. Not if the service is
// dead. Collective.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE bool discards(const mount_ref& fs, const Group g, std::uint32_t node,
                                         std::int32_t error) {
  std::uint32_t yes = 0;
  if (g.is_leader() && !fs.client().is_dead()) {
    yes = 1;
    std::int32_t none = 0;
    // Release: pairs with the acquire in close_on_host().
    if (fs.node(node).dirty.load_acquire() != 0)
      (void)fs.node(node).discarded.compare_exchange_acq_rel(none, error);
  }
  return g.broadcast(yes) != 0;
}

// Gives back a descriptor that may write its file. Returns 0; or the error of a flush, or of an
// earlier write-back that no call has returned. Collective. Waits for the host, if pages are dirty.
//
// The last holder of a record flushes the file's dirty pages. Other groups may open the file and
// write to it meanwhile. The flush may leave pages dirty, because the host failed or another group
// wrote more. The remaining writers of the file are responsible for these pages.
//
// If there are none, the bytes are lost: the last writer sets `closing`, flushes again, and
// discards the rest. The close of the file reports that to the host. But if the service is dead,
// the bytes stay dirty and the file stays open in the host, and the end of the mount writes them.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t leave_writers(const mount_ref& fs, const Group g,
                                                      const file_view file, bool last_of_record) {
  inode_state& node = fs.node(file.node);
  std::int32_t error = 0;
  const auto tell = [&](std::int32_t flushed) {
    if (error == 0) error = flushed;
    if (!g.is_leader()) return;
    const std::int32_t kept = node.error.exchange_acq_rel(0), failed = node.failed.load_acquire();
    if (error == 0) error = failed != 0 ? failed : kept;
  };
  tell(last_of_record ? flush_file(fs, g, file.version, file.node, false) : 0);
  std::uint32_t last = 0;
  if (g.is_leader()) {
    // Release; the last writer also acquires: it must find the pages that the other writers left
    // dirty. If a writer has joined since, that writer is the last one later.
    std::uint32_t none = 0;
    if (node.writers.fetch_add_release(~0u) == 1)
      last = node.writers.compare_exchange_acq_rel(none, inode_state::closing) ? 1 : 0;
  }
  last = g.broadcast(last);
  if (last == 0) return g.broadcast(error);
  GPUFS_SCHEDULE_POINT("file.leave");
  const std::int32_t flushed = flush_file(fs, g, file.version, file.node, true);
  tell(flushed);
  if (flushed == 0 || discards(fs, g, file.node, flushed)) {
    if (flushed != 0) {
      (void)by_one_warp(g, [&](const one_warp_of<Group>& part) {
        write_back(fs, part).discard(file.version, file.node);
        return 0;
      });
    }
    // Descriptors that are opened from now on write other bytes.
    if (g.is_leader()) node.failed.store_relaxed(0);
  }
  // Release: pairs with the acquire in join_writers(); a group may have joined while `closing` was
  // set.
  if (g.is_leader()) (void)node.writers.fetch_and_acq_rel(~inode_state::closing);
  return g.broadcast(error);
}

// Gives back one holder of a descriptor. For a descriptor that may write its file, returns the
// result of the flush. Collective. Waits for the host for such a descriptor, and at the last close
// of one that has an inode state (close_on_host).
template <class Group>
GPUFS_HD std::int32_t close_descriptor(const mount_ref& fs, const Group& g, std::int32_t fd) {
  using holding = record_table::holding;
  const record_table records(fs);
  struct {
    file_view view;
    std::int32_t result;
    holding was;
  } s{{}, 0, holding::none};
  if (g.is_leader()) {
    const found_file found = look_up(fs, fd);
    s.view = found.view;
    s.result = found.error;
    const bool writes = (found.view.access & access_write) != 0;
    if (s.result == 0) s.was = records.drop_holder(found.view.record, found.tag, writes);
    if (s.was == holding::none) s.result = -EBADF;
    // A descriptor that only reads loses nothing.
    else if (!writes) (void)records.unpin(s.view.record);
  }
  // The usual case is a descriptor that only reads; keep it cheap.
  if constexpr (!Group::is_one_thread) s = g.broadcast(s);
  if (s.was == holding::none || (s.view.access & access_write) == 0) return s.result;
  s.result = leave_writers(fs, g, s.view, s.was == holding::last);
  if (s.was == holding::last) {
    // The host may close the file later, when no call is left to report an error to. It remembers
    // this error for groups that have other descriptors of the file (service/sync_rounds.hpp).
    std::int32_t late = 0;
    if (g.is_leader())
      late = fs.client().ask({request_code::report_close, s.view.handle, 0, 0}).result;
    late = g.broadcast(late);
    if (s.result == 0) s.result = late;
  }
  if (g.is_leader()) {
    const std::int32_t closed = records.unpin(s.view.record);
    if (s.result == 0) s.result = closed;
  }
  return g.broadcast(s.result);
}

}  // namespace gpufs::detail
