// What groups read of an inode state: the file's size, and whether a change of the file may still
// take effect. arena.cuh has the fields.
#pragma once

#include "gpufs/cache/arena.cuh"

namespace gpufs::detail {

// Returns `size`, which was read from a node, if a file may be so large. Otherwise waits until it
// is smaller: an append that is refused has added its bytes, and is taking them back. Called by one
// thread.
GPUFS_HD inline std::uint64_t allowed_size(const inode_state& node, std::uint64_t size) {
  for (std::uint32_t attempt = 0; size >= limits::file_bytes_max; ++attempt) {
    platform::pause(attempt);
    size = node.size.load_acquire();
  }
  return size;
}

// The size of a file that is open for writing, as the leader sees it. Collective.
template <class Group>
GPUFS_HD std::uint64_t file_size(const mount_ref& fs, const Group& g, std::uint32_t node) {
  std::uint64_t size = 0;
  // Acquire: pairs with the writer's release. All bytes that the size covers are visible.
  if (g.is_leader()) size = allowed_size(fs.node(node), fs.node(node).size.load_acquire());
  return g.broadcast(size);
}

// Whether a write or a truncation of the file that got no answer in time may still take effect.
// Called by one thread. `waits`: waits for its answer, for up to one more request timeout.
GPUFS_HD GPUFS_OUT_OF_LINE inline bool is_unsettled_now(const mount_ref& fs,
                                                        std::uint32_t node_number,
                                                        std::uint64_t version, bool waits) {
  inode_state& node = fs.node(node_number);
  // Acquire: pairs with the release of the group that got no answer. Without it that group's slot
  // could still look free.
  const std::uint32_t timed_out = node.timed_out.load_acquire();
  std::uint32_t settled = node.settled.load_relaxed();
  if (timed_out == settled) return false;
  const std::uint64_t name = node_name(node_number, version);
  const channel_client client = fs.client();
  const bool unanswered =
      waits ? client.has_unanswered_write_for_long(name) : client.has_unanswered_write(name);
  // Settles the count that was read. A request that times out meanwhile raises `timed_out` above
  // it.
  if (!unanswered) (void)node.settled.compare_exchange_acq_rel(settled, timed_out);
  return unanswered;
}
// The usual case, in two loads: no request timed out.
GPUFS_HD inline bool is_settled(const mount_ref& fs, std::uint32_t node_number,
                                std::uint64_t version, bool waits) {
  const inode_state& node = fs.node(node_number);
  return node.timed_out.load_acquire() == node.settled.load_relaxed() ||
         !is_unsettled_now(fs, node_number, version, waits);
}

// Keeps the error of a failure after which written bytes may never reach the file's disk. A failed
// sync or close may have dropped them for good (Linux marks the pages as clean). A truncation
// without an answer may still take place. Called by one thread.
GPUFS_HD inline void keep_failure(const mount_ref& fs, std::uint32_t node, std::int32_t error) {
  std::int32_t none = 0;
  (void)fs.node(node).failed.compare_exchange_acq_rel(none, error);
}

}  // namespace gpufs::detail
