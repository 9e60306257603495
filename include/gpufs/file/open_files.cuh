// Open files: gopen and gclose. Open-file records are slots like frames, with the same index and
// state machine. A "load" is the host's open; a pin is one holder of the descriptor; when the last
// holder leaves, the record is closed at once.
//
//   find and pin --resident------> the file is open already: no round trip
//        |   \---loading---------> wait for the other group's open
//      absent
//        |
//   claim a free record -> begin_load -> ask the host -> [install the pages of the reply] ->
//   publish
//
// Progress: an opener holds no page while it waits, and installs pages without waiting
// (page_cache::offer). So waits of openers and of page loaders form no cycle.
#pragma once

#include "gpufs/file/load.cuh"
#include "gpufs/file/path_hash.cuh"

namespace gpufs {

// A flag of gopen, together with O_WRONLY: while the file is open, each byte is written at most
// once and none is read. So no page is ever loaded. (GPUfs, ACM TOCS 32(1), section 3.2.) Other
// descriptors of the file see the bytes when they are in the file: after gfsync or the last gclose,
// or earlier. open(2) does not use this bit.
inline constexpr std::int32_t O_GWRONCE = 1 << 28;

}  // namespace gpufs

namespace gpufs::detail {

class record_table {
 public:
  GPUFS_HD explicit record_table(const mount_ref& fs) : fs_(&fs) {}
  GPUFS_HD open_file& at(std::uint32_t record) const {
    return fs_->at<open_file>(fs_->layout.files)[record];
  }
  GPUFS_HD slot_header& header(std::uint32_t record) const { return at(record).header; }
  GPUFS_HD hash_index<record_table> index() const {
    return {fs_->at<index_bucket>(fs_->layout.file_buckets), fs_->layout.file_bucket_count, *this};
  }
  // Releases a pin, and closes the file if it was the last pin. Every unpin checks this, because a
  // pin of a mistaken lookup may be the last one too. Returns the result of close_on_host(), or 0
  // if nothing was closed.
  GPUFS_HD std::int32_t unpin(std::uint32_t record) const {
    const std::uint32_t word = header(record).state.unpin();
    return slot_state::phase(word) == slot_phase::resident && slot_state::pins(word) == 0
               ? close_unused(record)
               : 0;
  }
  // Has the host close a file. If the file has an inode state, waits for the host: otherwise a
  // later open would join the writers of the file and not check whether it has changed.
  //
  // Returns 0; or -errno if the host has not confirmed the close. The close then takes place before
  // an open of this file is answered: by the host, if the request was posted; otherwise by
  // close_before_open(). The request also reports the bytes that a gclose has discarded. Called by
  // one thread.
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t close_on_host(std::uint32_t record, std::uint64_t handle,
                                                        std::uint32_t node, bool writes) const {
    channel_client client = fs_->client();
    // The file may have dirty bytes; the end of the mount writes them if the file is still open
    // then (leave_writers).
    if (node != no_node && client.is_dead()) return -EIO;
    const std::int32_t acquired = client.acquire();
    if (acquired < 0) {
      keep_unclosed(record, handle, take_discarded(node, writes), false);
      return acquired;
    }
    const auto channel_slot = static_cast<std::uint32_t>(acquired);
    if (node == no_node) {
      client.post(channel_slot, {request_code::close, handle, 0, 0});
      client.abandon(channel_slot);  // no thread waits for the answer
      return 0;
    }
    const std::int32_t discarded = take_discarded(node, writes);
    const channel_client::answer answer =
        client.ask(channel_slot, close_of_written(handle, discarded));
    if (answer.abandoned) GPUFS_SCHEDULE_POINT("file.close_unanswered");
    // The inode state may belong to another file by now. The end of the mount finds the error by
    // the handle, if the service has not closed the file until then.
    if (answer.abandoned && discarded != 0) keep_unclosed(record, handle, discarded, true);
    return answer.result;
  }
  // Has the host close the files that could not be closed before (keep_unclosed()). Called before
  // an open is posted in `channel_slot`, which the caller has acquired. Returns 0; or -errno, and
  // then the channel slot is abandoned.
  GPUFS_HD std::int32_t close_before_open(std::uint32_t channel_slot) const {
    if (!fs_->writes()) return 0;
    // Acquire: pairs with the release in keep_unclosed().
    if (fs_->at<name_state>(fs_->layout.names)->unclosed.load_acquire() == 0) return 0;
    return close_unclosed(channel_slot);
  }
  // Removes one holder of the descriptor. Returns `none` if the record is no longer open under the
  // generation with this tag, as after a surplus gclose. The holder's pin stays; the caller
  // releases it with unpin().
  //
  // A close that finds no holders waits, for one of two cases: a surplus close has decremented the
  // count and is about to undo that; or the last holder is leaving, and the generation is about to
  // change. Both waits end by themselves, and no valid close fails because of a surplus one. The
  // function uses no compare-exchange loop (slot_state::try_unpin has the reason).
  enum class holding : std::uint32_t { none, one_of_several, last };
  [[nodiscard]] GPUFS_HD holding drop_holder(std::uint32_t record, std::uint32_t tag,
                                             bool writes) const {
    atomic_word<std::uint64_t>& holders = at(record).tag_holders;
    for (std::uint32_t attempt = 0;; ++attempt) {
      const open_file::held seen = open_file::holders_in(holders.load_relaxed());
      if (file_facts::tag_of(seen.generation) != tag) return holding::none;
      if (seen.holders <= 0) {
        GPUFS_SCHEDULE_POINT("file.wait_to_drop_holder");
        platform::pause(attempt);
        continue;
      }
      GPUFS_SCHEDULE_POINT("file.drop_holder");
      // Release; the last holder also acquires: it flushes what all holders have written, so it
      // must see all of their writes.
      const open_file::held before =
          open_file::holders_in(writes ? holders.fetch_add_release(~std::uint64_t{0})
                                       : holders.fetch_add_relaxed(~std::uint64_t{0}));
      if (writes) (void)holders.load_acquire();
      if (file_facts::tag_of(before.generation) == tag && before.holders > 0)
        return before.holders == 1 ? holding::last : holding::one_of_several;
      GPUFS_SCHEDULE_POINT("file.step_back");
      holders.add_relaxed(1);
    }
  }

  // Called only by the owner of the record. `size`: the size, or the node (file_facts::size).
  GPUFS_HD void describe(std::uint32_t record, std::uint64_t version, std::uint64_t size) const {
    for (std::uint32_t i = 0; i < file_copies; ++i) {
      file_facts& facts = fs_->facts_of(record, i);
      store_tagged(facts.version, version);
      store_tagged(facts.size, size);
      file_counts& counts = fs_->counts_of(record, i);
      counts.hits.store_relaxed(0);
      counts.page_loads.store_relaxed(0);
      counts.direct_loads.store_relaxed(0);
      counts.loaded_bytes.store_relaxed(0);
    }
  }
  GPUFS_HD void set_generation(std::uint32_t record, std::uint32_t generation, std::uint64_t handle,
                               std::uint32_t mode, std::uint32_t holders) const {
    // Each call raises the generation by one, and starts from no holders. It adds to the word
    // instead of storing it, so that it does not overwrite the undo of a surplus gclose.
    at(record).tag_holders.add_relaxed((std::uint64_t{1} << 32) + holders);
    at(record).handle.store_relaxed(handle);
    for (std::uint32_t i = 0; i < file_copies; ++i)
      fs_->facts_of(record, i).set_tags(generation, handle, mode);
  }
  // Records are not evicted: an open record has a holder.
  GPUFS_HD static bool claim_resident(std::uint32_t) { return false; }

 private:
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t close_unused(std::uint32_t record) const {
    GPUFS_SCHEDULE_POINT("file.close");
    // Fails if the file was opened again meanwhile, or if another thread closes it.
    if (!header(record).state.claim(slot_phase::resident)) return 0;
    index().remove(header(record).key(), record);
    const std::uint64_t handle = at(record).handle.load_relaxed();
    const file_facts& facts = fs_->facts_of(record, 0);
    const std::uint64_t size = facts.size.load_relaxed();
    const bool has_node = (size & file_facts::size_in_node) != 0;
    const bool writes = (file_facts::mode_in(facts.tag_mode.load_relaxed()) & access_write) != 0;
    set_generation(record, at(record).generation() + 1, 0, 0, 0);
    header(record).state.release();
    fs_->counters().add(counter::closes);
    return close_on_host(record, handle, has_node ? static_cast<std::uint32_t>(size) : no_node,
                         writes);
  }

  // The -errno of given-up bytes that the close of this file reports to the host, or 0. The caller
  // is responsible for it from now on.
  GPUFS_HD std::int32_t take_discarded(std::uint32_t node, bool writes) const {
    // Acquire: pairs with the release in discards().
    return writes && node != no_node ? fs_->node(node).discarded.exchange_acq_rel(0) : 0;
  }
  // `discarded`: -errno of bytes that were discarded, or 0.
  GPUFS_HD static request close_of_written(std::uint64_t handle, std::int32_t discarded) {
    return {request_code::close_written, handle, 0,
            static_cast<std::uint64_t>(-static_cast<std::int64_t>(discarded))};
  }

  // Remembers a file that the host must still close, and what its close reports: in this record, or
  // in the next one that remembers none. `posted`: the close is posted, but was not answered in
  // time. In a read-only mount the file stays open at the host until the mount ends, which does no
  // harm.
  GPUFS_HD void keep_unclosed(std::uint32_t record, std::uint64_t handle, std::int32_t discarded,
                              bool posted) const {
    if (!fs_->writes()) return;
    for (std::uint32_t i = 0; i < fs_->layout.file_count; ++i) {
      std::uint64_t none = 0;
      open_file& place = at((record + i) % fs_->layout.file_count);
      if (place.unclosed.load_relaxed() != 0 ||
          !place.unclosed.compare_exchange_acq_rel(none, open_file::being_kept))
        continue;
      // Release, twice: a thread in close_unclosed() that reads this error sees that the handle
      // before it has gone; and a thread that reads this handle sees its error.
      place.unclosed_discarded.store_release(posted ? -discarded : discarded);
      name_state& names = *fs_->at<name_state>(fs_->layout.names);
      if (discarded != 0) names.unclosed_losses.add_relaxed(1);
      // Counted before another group can find the handle, have it closed, and count it off: else
      // the count could be 0 while a third handle is kept.
      if (!posted) (void)names.unclosed.fetch_add_release(1);
      GPUFS_SCHEDULE_POINT("file.keep_unclosed");
      place.unclosed.store_release(handle);
      return;
    }
  }
  // Groups that open at the same time ask for the same closes, so that each close is answered
  // before each group's own open. That is safe: a handle is never reused, and a second close of it
  // finds nothing. So the host gets the error of given-up bytes once.
  [[nodiscard]] GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t close_unclosed(
      std::uint32_t channel_slot) const {
    channel_client client = fs_->client();
    for (std::uint32_t i = 0; i < fs_->layout.file_count; ++i) {
      atomic_word<std::uint64_t>& place = at(i).unclosed;
      // Acquires: see keep_unclosed(). The error belongs to the handle if the handle is still there
      // afterwards; otherwise another group has had the file closed.
      std::uint64_t handle = place.load_acquire();
      if (handle == 0 || handle == open_file::being_kept) continue;
      const std::int32_t discarded = at(i).unclosed_discarded.load_acquire();
      if (discarded > 0 || place.load_relaxed() != handle) continue;
      client.post(channel_slot, close_of_written(handle, discarded));
      const channel_client::answer answer = client.wait(channel_slot);
      // Also without an answer: the request is posted, so the host closes the file. But the service
      // may end before that, and then the end of the mount must find the error.
      const bool stays = answer.abandoned && discarded != 0;
      std::uint64_t still = handle;
      if (place.compare_exchange_acq_rel(still, open_file::being_kept)) {
        // Another group may have posted the close too, and have counted it already.
        if (at(i).unclosed_discarded.load_acquire() == discarded)
          (void)fs_->at<name_state>(fs_->layout.names)->unclosed.fetch_add_release(~0u);
        if (stays) at(i).unclosed_discarded.store_release(-discarded);
        place.store_release(stays ? handle : 0);
      }
      if (answer.abandoned) return answer.result;
    }
    return 0;
  }

  const mount_ref* fs_;
};

// The low bits of the generation are part of the descriptor.
GPUFS_HD inline std::int32_t make_descriptor(std::uint32_t record, std::uint32_t generation) {
  return static_cast<std::int32_t>(
      ((generation & ((1u << limits::generation_bits) - 1)) << limits::open_files_bits) | record);
}

// Looks a descriptor up. It takes no pin, because the caller's open is one. Called by one thread.
// Relaxed loads are enough: the caller has received the descriptor, in whatever way, after the
// opener published the record, so the values are at least as new. A stale descriptor only must not
// match.
struct found_file {
  file_view view;
  std::int32_t error;
  std::uint32_t tag;  // tag of the generation
};
GPUFS_HD inline found_file look_up(const mount_ref& fs, std::int32_t fd) {
  const std::uint32_t record = static_cast<std::uint32_t>(fd) & (limits::open_files_max - 1);
  const bool odd = ((static_cast<std::uint32_t>(fd) >> limits::open_files_bits) & 1) != 0;
  if (fd < 0 || !odd || record >= fs.layout.file_count) return {{}, -EBADF, 0};
  const file_facts& facts = fs.facts_of(record);
  const word_pair a = load_tagged(&facts.version);
  const word_pair b = load_tagged(&facts.size);
  const std::uint32_t tag = file_facts::tag_in(a.second);
  if (make_descriptor(record, tag) != fd || tag != file_facts::tag_in(b.second))
    return {{}, -EBADF, 0};
  const bool has_node = (b.first & file_facts::size_in_node) != 0;
  const std::uint64_t size = has_node ? 0 : b.first;
  const std::uint32_t node = has_node ? static_cast<std::uint32_t>(b.first) : no_node;
  return {{a.first, size, file_facts::handle_in(a.second, b.second), record, node,
           file_facts::mode_in(b.second)},
          0,
          tag};
}

template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::uint64_t share_size(const mount_ref& fs, const Group g,
                                                    std::uint32_t node) {
  return file_size(fs, g, node);
}

// The same for a group: each member looks the descriptor up by itself, at the same addresses. All
// members find the same values, because these do not change while the generation is that of the
// descriptor. The members only have to agree whether it still is. The size of a file that is being
// written is not looked up: all writers would read that one word. Collective.
template <class Group>
GPUFS_HD found_file find_to_write(const mount_ref& fs, const Group& g, std::int32_t fd,
                                  std::uint32_t access = access_write) {
  found_file f = look_up(fs, fd);
  if (!g.all(f.error == 0 && (f.view.access & access) != 0)) f.error = -EBADF;
  return f;
}
// The same, and the leader's view of the size for all members. Collective.
template <class Group>
GPUFS_HD found_file find_file(const mount_ref& fs, const Group& g, std::int32_t fd,
                              std::uint32_t access) {
  found_file f = find_to_write(fs, g, fd, access);
  if (f.error == 0 && f.view.node != no_node) f.view.size = share_size(fs, g, f.view.node);
  return f;
}

// Length of a path in bytes, without its terminating zero; or -errno.
GPUFS_HD inline std::int32_t length_of_path(const char* path) {
  if (path == nullptr) return -EFAULT;
  std::uint32_t n = 0;
  while (path[n] != 0) {
    if (++n == limits::path_bytes_max) return -ENAMETOOLONG;
  }
  return n == 0 ? -ENOENT : static_cast<std::int32_t>(n);
}

// Adds a descriptor to those that may write a file. Called by one thread, before any group has the
// descriptor.
//
// Waits while the last writer discards what it could not write, so that new bytes are not discarded
// with the old ones. The wait has no deadline: a caller that timed out would have to leave the
// writers again, which waits too. It ends: the last writer writes each dirty page once more, by
// requests that end, and stops at the first one without an answer. Then it waits at most a fixed
// time for readers of a page. It never waits for an open.
GPUFS_HD inline void join_writers(const mount_ref& fs, std::uint32_t node) {
  atomic_word<std::uint32_t>& writers = fs.node(node).writers;
  // Acquire: pairs with the release of the last writer.
  if ((writers.fetch_add_acquire(1) & inode_state::closing) == 0) return;
  for (std::uint32_t attempt = 0; (writers.load_for_wait() & inode_state::closing) != 0;
       ++attempt) {
    GPUFS_SCHEDULE_POINT("file.join");
    platform::pause(attempt);
  }
  writers.end_wait();
}

}  // namespace gpufs::detail
