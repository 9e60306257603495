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
// once and none is read. So no page is ever loaded. (GPUfs, ACM TOCS 32(1), section 3.2.) open(2)
// does not use this bit.
inline constexpr std::int32_t O_GWRONCE = 1 << 28;

}  // namespace gpufs

namespace gpufs::detail {

class record_table {
 public:
  GPUFS_HD explicit record_table(const mount_ref& fs) : fs_(&fs) {}
  GPUFS_HD open_file& at(std::uint32_t slot) const {
    return fs_->at<open_file>(fs_->layout.files)[slot];
  }
  GPUFS_HD slot_header& header(std::uint32_t slot) const { return at(slot).header; }
  GPUFS_HD hash_index<record_table> index() const {
    return {fs_->at<index_bucket>(fs_->layout.file_buckets), fs_->layout.file_bucket_count, *this};
  }
  // Releases a pin, and closes the file if it was the last pin. Every unpin checks this, because a
  // pin of a mistaken lookup may be the last one too. Returns the result of close_on_host(), or 0
  // if nothing was closed.
  GPUFS_HD std::int32_t unpin(std::uint32_t slot) const {
    const std::uint32_t word = header(slot).state.unpin();
    return slot_state::phase(word) == slot_phase::resident && slot_state::pins(word) == 0
               ? close_unused(slot)
               : 0;
  }
  // Has the host close a file. If the file has an inode state, waits for the host: otherwise a
  // later open would join the writers of the file and not check whether it has changed.
  //
  // Returns 0; or -errno if the host has not confirmed the close. The close then takes place before
  // an open of this file is answered: by the host, if the request was posted; otherwise by
  // close_before_open(). The request also reports the bytes that a gclose has given up. Called by
  // one thread.
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t close_on_host(std::uint32_t slot, std::uint64_t handle,
                                                        std::uint32_t node, bool writes) const {
    channel_client client = fs_->client();
    // The file may have dirty bytes; the end of the mount writes them if the file is still open
    // then (leave_writers).
    if (node != no_node && client.is_dead()) return -EIO;
    const std::int32_t turn = client.acquire();
    if (turn < 0) {
      keep_unclosed(slot, handle);
      return turn;
    }
    const auto channel_slot = static_cast<std::uint32_t>(turn);
    if (node == no_node) {
      client.post(channel_slot, {request_code::close, handle, 0, 0});
      client.abandon(channel_slot);  // no thread waits for the answer
      return 0;
    }
    atomic_word<std::int32_t>& given_up = fs_->node(node).given_up;
    // Acquire: pairs with the release in gives_up().
    const std::int32_t lost = writes ? given_up.exchange_acq_rel(0) : 0;
    const auto error = static_cast<std::uint64_t>(-static_cast<std::int64_t>(lost));
    const channel_client::answer answer =
        client.ask(channel_slot, {request_code::close_written, handle, 0, error});
    std::int32_t none = 0;
    if (answer.abandoned && lost != 0) (void)given_up.compare_exchange_acq_rel(none, lost);
    return answer.result;
  }
  // Has the host close the files that could not be closed before (keep_unclosed()). Called before
  // an open is posted in `channel_slot`, which the caller has acquired. Returns 0; or -errno, and
  // then the slot is abandoned.
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
  [[nodiscard]] GPUFS_HD holding let_go(std::uint32_t slot, std::uint32_t tag, bool writes) const {
    atomic_word<std::uint64_t>& holders = at(slot).tag_holders;
    for (std::uint32_t attempt = 0;; ++attempt) {
      const open_file::held seen = open_file::holders_in(holders.load_relaxed());
      if (file_facts::tag_of(seen.generation) != tag) return holding::none;
      if (seen.holders <= 0) {
        GPUFS_SCHEDULE_POINT("file.wait_to_let_go");
        platform::pause(attempt);
        continue;
      }
      GPUFS_SCHEDULE_POINT("file.let_go");
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
  GPUFS_HD void describe(std::uint32_t slot, std::uint64_t version, std::uint64_t size) const {
    for (std::uint32_t i = 0; i < file_copies; ++i) {
      file_facts& facts = fs_->facts_of(slot, i);
      store_tagged(facts.version, version);
      store_tagged(facts.size, size);
      file_counts& counts = fs_->counts_of(slot, i);
      counts.hits.store_relaxed(0);
      counts.page_loads.store_relaxed(0);
      counts.direct_loads.store_relaxed(0);
      counts.loaded_bytes.store_relaxed(0);
    }
  }
  GPUFS_HD void set_generation(std::uint32_t slot, std::uint32_t generation, std::uint64_t handle,
                               std::uint32_t mode, std::uint32_t holders) const {
    // Each call raises the generation by one, and starts from no holders. It adds to the word
    // instead of storing it, so that it does not overwrite the undo of a surplus gclose.
    at(slot).tag_holders.add_relaxed((std::uint64_t{1} << 32) + holders);
    at(slot).handle.store_relaxed(handle);
    for (std::uint32_t i = 0; i < file_copies; ++i)
      fs_->facts_of(slot, i).set_tags(generation, handle, mode);
  }
  // Records are not evicted: an open record has a holder.
  GPUFS_HD static bool claim_resident(std::uint32_t) { return false; }

 private:
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t close_unused(std::uint32_t slot) const {
    GPUFS_SCHEDULE_POINT("file.close");
    // Fails if the file was opened again meanwhile, or if another thread closes it.
    if (!header(slot).state.claim(slot_phase::resident)) return 0;
    index().remove(header(slot).key(), slot);
    const std::uint64_t handle = at(slot).handle.load_relaxed();
    const file_facts& facts = fs_->facts_of(slot, 0);
    const std::uint64_t size = facts.size.load_relaxed();
    const bool has_node = (size & file_facts::size_in_node) != 0;
    const bool writes = (file_facts::mode_in(facts.tag_mode.load_relaxed()) & access_write) != 0;
    set_generation(slot, at(slot).generation() + 1, 0, 0, 0);
    header(slot).state.release();
    fs_->counters().add(counter::closes);
    return close_on_host(slot, handle, has_node ? static_cast<std::uint32_t>(size) : no_node,
                         writes);
  }

  // Remembers a file that the host must still close: in this record, or in the next one that
  // remembers none. In a read-only mount the file stays open at the host until the mount ends,
  // which does no harm.
  GPUFS_HD void keep_unclosed(std::uint32_t slot, std::uint64_t handle) const {
    if (!fs_->writes()) return;
    for (std::uint32_t i = 0; i < fs_->layout.file_count; ++i) {
      std::uint64_t none = 0;
      atomic_word<std::uint64_t>& place = at((slot + i) % fs_->layout.file_count).unclosed;
      if (place.load_relaxed() != 0 || !place.compare_exchange_acq_rel(none, handle)) continue;
      (void)fs_->at<name_state>(fs_->layout.names)->unclosed.fetch_add_release(1);
      return;
    }
  }
  // Groups that open at the same time ask for the same closes, so that each close is answered
  // before each group's own open. That is safe: a handle is never reused, and a second close of it
  // finds nothing.
  [[nodiscard]] GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t close_unclosed(
      std::uint32_t channel_slot) const {
    channel_client client = fs_->client();
    for (std::uint32_t i = 0; i < fs_->layout.file_count; ++i) {
      atomic_word<std::uint64_t>& place = at(i).unclosed;
      std::uint64_t handle = place.load_relaxed();
      if (handle == 0) continue;
      client.post(channel_slot, {request_code::close_written, handle, 0, 0});
      const channel_client::answer answer = client.wait(channel_slot);
      // Also without an answer: the request is posted, so the host closes the file.
      if (place.compare_exchange_acq_rel(handle, 0))
        (void)fs_->at<name_state>(fs_->layout.names)->unclosed.fetch_add_release(~0u);
      if (answer.abandoned) return answer.result;
    }
    return 0;
  }

  const mount_ref* fs_;
};

// The low bits of the generation are part of the descriptor.
GPUFS_HD inline std::int32_t make_descriptor(std::uint32_t slot, std::uint32_t generation) {
  return static_cast<std::int32_t>(
      ((generation & ((1u << limits::generation_bits) - 1)) << limits::open_files_bits) | slot);
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
  const std::uint32_t slot = static_cast<std::uint32_t>(fd) & (limits::open_files_max - 1);
  const bool odd = ((static_cast<std::uint32_t>(fd) >> limits::open_files_bits) & 1) != 0;
  if (fd < 0 || !odd || slot >= fs.layout.file_count) return {{}, -EBADF, 0};
  const file_facts& facts = fs.facts_of(slot);
  const word_pair a = load_tagged(&facts.version);
  const word_pair b = load_tagged(&facts.size);
  const std::uint32_t tag = file_facts::tag_in(a.second);
  if (make_descriptor(slot, tag) != fd || tag != file_facts::tag_in(b.second))
    return {{}, -EBADF, 0};
  const bool has_node = (b.first & file_facts::size_in_node) != 0;
  const std::uint64_t size = has_node ? 0 : b.first;
  const std::uint32_t node = has_node ? static_cast<std::uint32_t>(b.first) : no_node;
  return {{a.first, size, file_facts::handle_in(a.second, b.second), slot, node,
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
// Waits while the last writer gives up what it could not write, so that new bytes are not given up
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

template <class Group>
GPUFS_HD std::int32_t close_descriptor(const mount_ref& fs, const Group& g, std::int32_t fd);

// The number of the caller's launch. No other launch on the mount has it, except that replays of a
// CUDA graph may share one. Never 0 or inode_state::being_emptied.
GPUFS_HD inline std::uint64_t this_launch(const mount_ref& fs) {
  const std::uint64_t number =
      mix(fs.launch + mix(platform::grid_number()) * 0x9e3779b97f4a7c15ull);
  return number == 0 || number == inode_state::being_emptied ? 1 : number;
}

// Opens a file, for a group.
//
// O_TRUNC: of all opens of a launch with this flag, by any path and flags, one empties the file,
// and the others wait for it. Otherwise a group that writes before another group empties the file
// would lose its bytes. The inode state stores which launch emptied the file last. The inode state
// ends with the last open file of its version, so the host stores the launch too, and returns it to
// the next opener.
template <class Group>
class opener {
 public:
  GPUFS_HD opener(const mount_ref& fs, const Group& g) : fs_(fs), g_(g), records_(fs) {}

  // `empty(file)` is called collectively if the file must be emptied. If the host has just opened
  // the file, this happens before other groups can find it. It returns 0, or -errno; then the file
  // is closed again.
  template <class Empty>
  GPUFS_HD std::int32_t open(const char* path, std::int32_t flags, std::uint32_t mode,
                             const Empty& empty) {
    step s{};
    if (g_.is_leader()) s = begin(path, flags, mode);
    s = g_.broadcast(s);

    const bool empties = (flags & O_TRUNC) != 0;
    if (s.turn < 0) {
      if (s.result < 0 || !empties) return s.result;
      const std::int32_t error = empty_once(look_up(fs_, s.result).view, empty);
      if (error != 0) (void)close_descriptor(fs_, g_, s.result);
      return error != 0 ? error : s.result;
    }
    // The host has opened the file. The staging memory may hold its first bytes.
    const auto turn = static_cast<std::uint32_t>(s.turn);
    install(s, turn);
    g_.sync();
    if (g_.is_leader()) fs_.client().release(turn);
    // If the file was empty when the host opened it, there is nothing to cut; only the other groups
    // of the launch must know.
    const bool is_empty = s.is_fresh && s.view.size == 0;
    const auto empty_if_need_be = [&](const file_view& file) { return is_empty ? 0 : empty(file); };
    const std::int32_t error = empties ? empty_once(s.view, empty_if_need_be) : 0;
    std::int32_t fd = error;
    if (g_.is_leader() && error != 0) take_back(s.view, error);
    if (g_.is_leader() && error == 0) {
      if ((s.view.access & access_write) != 0) join_writers(fs_, s.view.node);
      open_file& file = records_.at(s.view.record);
      fd = make_descriptor(s.view.record, file.generation());
      file.header.state.publish();
      fs_.counters().add(counter::opens);
    }
    return g_.broadcast(fd);
  }

 private:
  struct step {
    file_view view;
    std::int32_t turn;  // channel slot that holds the answer; < 0: `result` ends the call
    // Descriptor or -errno; with a turn, the bytes of the file in the staging memory.
    std::int32_t result;
    bool is_fresh;  // `view` has the current size of the file, not that of an earlier open
  };

  GPUFS_HD ring_set<record_table> record_ring() const {
    return {fs_.at<slot_ring>(fs_.layout.file_ring), 1, records_};
  }

  GPUFS_HD static step done(std::int32_t result) { return {{}, -1, result, false}; }

  // ---- Called by the leader.

  // What descriptors opened with these flags allow; 0 for unknown or contradictory flags.
  GPUFS_HD static std::uint32_t access_of(std::int32_t flags) {
    constexpr std::int32_t known =
        O_ACCMODE | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_GWRONCE;
    const std::int32_t how = flags & O_ACCMODE;
    const bool writes = how == O_WRONLY || how == O_RDWR;
    if ((flags & ~known) != 0 || (how != O_RDONLY && !writes)) return 0;
    if (!writes && (flags & (O_TRUNC | O_APPEND | O_GWRONCE)) != 0) return 0;
    if ((flags & O_GWRONCE) != 0 && how != O_WRONLY) return 0;
    return (how != O_WRONLY ? access_read : 0u) | (writes ? access_write : 0u) |
           ((flags & O_APPEND) != 0 ? access_append : 0u) |
           ((flags & O_GWRONCE) != 0 ? access_once : 0u);
  }

  GPUFS_HD GPUFS_OUT_OF_LINE step begin(const char* path, std::int32_t flags, std::uint32_t mode) {
    const bool may_change =
        (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC | O_APPEND)) != 0;
    if (may_change && !fs_.writes()) return done(-EROFS);
    const std::uint32_t access = access_of(flags);
    if (access == 0) return done(-EINVAL);
    const std::int32_t length = length_of_path(path);
    if (length < 0) return done(length);
    slot_key key =
        path_hasher(fs_.path_key[0], fs_.path_key[1])(path, static_cast<std::uint32_t>(length));
    key.low ^= ((flags & O_NOFOLLOW) != 0 ? 1u : 0u) ^ (access ^ access_read);
    if (fs_.writes()) {
      name_state& names = *fs_.at<name_state>(fs_.layout.names);
      // Acquire: pairs with the release of a group that removed or renamed a path.
      key.high ^= mix(names.epoch.load_acquire());
      // A key of its own, so that each such open reaches the host, and all but one find that the
      // file exists.
      if ((flags & O_EXCL) != 0) key.high += mix(~names.exclusive.fetch_add_relaxed(1));
    }
    const wish wanted{access,
                      ((flags & O_NOFOLLOW) != 0 ? open_no_follow : 0u) |
                          ((access & access_read) != 0 ? open_reads : 0u) |
                          ((access & access_write) != 0 ? open_writes : 0u) |
                          ((flags & O_CREAT) != 0 ? open_creates : 0u) |
                          ((flags & O_EXCL) != 0 ? open_exclusive : 0u),
                      mode, may_change};

    hash_index<record_table> index = records_.index();
    std::uint32_t slot = 0;
    const channel_client client = fs_.client();
    channel_client::deadline waiting = channel_client::begin_wait();
    for (std::uint32_t round = 0;; ++round) {
      // Each time other groups may open the file first, and fail because they did not pass O_CREAT.
      // The deadline bounds that.
      if (round != 0 && client.timed_out(0, waiting)) return done(-EIO);
      const lookup_result r = index.lookup(key);
      // The group that failed to open the file may not have passed O_CREAT: then retry.
      if (r.what == lookup_result::kind::failed && (r.error != -ENOENT || (flags & O_CREAT) == 0))
        return done(r.error);
      if (r.what == lookup_result::kind::failed) continue;
      if (r.what == lookup_result::kind::resident) {
        fs_.counters().add(counter::reopens);
        // The pin of this lookup keeps the generation as it is.
        if ((access & access_write) != 0)
          join_writers(fs_, static_cast<std::uint32_t>(fs_.facts_of(r.slot).size.load_relaxed()));
        records_.at(r.slot).tag_holders.add_relaxed(1);
        return done(make_descriptor(r.slot, records_.at(r.slot).generation()));
      }
      const auto begun = begin_load(index, record_ring(), key, round);
      if (begun.what == hash_index<record_table>::begun::yes) {
        slot = begun.slot;
        break;
      }
      // A record may become free in a moment, but a table full of open files stays full.
      if (begun.what == hash_index<record_table>::begun::no_slot && round >= 16)
        return done(-EMFILE);
      platform::pause(round);
    }
    const step s = ask(path, static_cast<std::uint32_t>(length), wanted, slot);
    if (s.turn < 0) index.fail_load(key, slot, s.result);
    return s;
  }

  // How the host is to open a file.
  struct wish {
    std::uint32_t access;
    std::uint32_t bits;  // of open_bits
    std::uint32_t mode;
    bool may_change;
  };

  GPUFS_HD step ask(const char* path, std::uint32_t length, const wish& wanted,
                    std::uint32_t slot) {
    channel_client client = fs_.client();
    const std::int32_t turn = client.acquire();
    if (turn < 0) return done(turn);
    const auto channel_slot = static_cast<std::uint32_t>(turn);
    if (const std::int32_t error = records_.close_before_open(channel_slot); error != 0)
      return done(error);
    char* staging = fs_.channel.staging(channel_slot);
    copy_to_host(this_thread(), staging, path, length);
    request asked{request_code::open, wanted.bits, length, fs_.channel.layout.staging_bytes};
    if (wanted.may_change) {
      asked.code = request_code::open_write;
      asked.offset = wanted.mode;
    }
    client.post(channel_slot, asked);
    const channel_client::answer answer = client.wait(channel_slot);
    if (answer.abandoned) return done(answer.result);
    if (answer.result < 0) {
      client.release(channel_slot);
      return done(answer.result);
    }
    const reply_record& reply = fs_.channel.reply(channel_slot);
    open_file& file = records_.at(slot);
    const std::uint32_t node = reply.node.load_relaxed();
    const std::uint32_t mode = reply.mode.load_relaxed();
    std::uint32_t access = wanted.access;
    // The mount cannot load pages of a file that cannot be read.
    if ((mode & unreadable_flag) != 0) access |= access_once;
    const file_view view{reply.version.load_relaxed(),
                         reply.size.load_relaxed(),
                         reply.handle.load_relaxed(),
                         slot,
                         node,
                         access};
    if (node != no_node) make_node(view, reply.emptied_by.load_relaxed());
    records_.describe(slot, view.version,
                      node != no_node ? file_facts::size_in_node | node : view.size);
    file.modified_ns.store_relaxed(reply.modified_ns.load_relaxed());
    file.changed_ns.store_relaxed(reply.changed_ns.load_relaxed());
    file.inode.store_relaxed(reply.inode.load_relaxed());
    file.device.store_relaxed(reply.device.load_relaxed());
    records_.set_generation(slot, file.generation() + 1, view.handle, (mode & 0xffffu) | access, 1);
    return {view, turn, answer.result, (mode & fresh_flag) != 0};
  }

  // Fails an open that the host has already made.
  GPUFS_HD void take_back(const file_view& view, std::int32_t error) {
    open_file& file = records_.at(view.record);
    file.tag_holders.add_relaxed(~std::uint64_t{0});
    records_.set_generation(view.record, file.generation() + 1, 0, 0, 0);
    // The open returns its own error, not that of the close.
    (void)records_.close_on_host(view.record, view.handle, view.node, false);
    records_.index().fail_load(file.header.key(), view.record, error);
  }

  // Initializes the inode state of a version. The first opener that the host refers to it does
  // this, before any group writes through it. The other openers wait without a deadline, because
  // the initialization is a few stores without a wait.
  GPUFS_HD void make_node(const file_view& view, std::uint64_t emptied_by) {
    inode_state& node = fs_.node(view.node);
    std::uint64_t seen = node.version.load_acquire();
    for (std::uint32_t attempt = 0; seen != view.version; ++attempt) {
      if (seen == inode_state::being_made) {
        platform::pause(attempt);
        seen = node.version.load_acquire();
      } else if (node.version.compare_exchange_acquire(seen, inode_state::being_made)) {
        node.size.store_relaxed(view.size);
        node.stored.store_relaxed(view.size);
        node.error.store_relaxed(0);
        node.lost.store_relaxed(0);
        node.settled.store_relaxed(0);
        node.failed.store_relaxed(0);
        node.given_up.store_relaxed(0);
        node.closings.store_relaxed(0);
        node.cuts.store_relaxed(0);
        node.dirty.store_relaxed(0);
        node.writers.store_relaxed(0);
        node.emptied_by.store_relaxed(emptied_by);
        node.version.store_release(view.version);
        return;
      }
    }
  }

  // ---- Called by the group.

  // Empties the file, unless a group of this launch has already done so. The file has an inode
  // state, because O_TRUNC needs write access. The wait for a group that empties the file ends: its
  // requests to the host end, and so do the loads and write-backs that it waits for; none of these
  // groups opens files meanwhile.
  template <class Empty>
  GPUFS_HD std::int32_t empty_once(const file_view& file, const Empty& empty) {
    const std::uint64_t launch = this_launch(fs_);
    atomic_word<std::uint64_t>& emptied_by = fs_.node(file.node).emptied_by;
    struct {
      std::uint64_t before;
    } s{launch};
    if (g_.is_leader()) {
      // Acquire: pairs with the release of the group that has emptied the file. What this group
      // writes comes after that.
      s.before = emptied_by.load_acquire();
      for (std::uint32_t attempt = 0; s.before != launch; ++attempt) {
        if (s.before != inode_state::being_emptied &&
            emptied_by.compare_exchange_acquire(s.before, inode_state::being_emptied))
          break;
        platform::pause(attempt);
        s.before = emptied_by.load_acquire();
      }
    }
    s = g_.broadcast(s);
    if (s.before == launch) return 0;
    GPUFS_SCHEDULE_POINT("file.empty");
    std::int32_t error = empty(file);
    if (g_.is_leader()) {
      if (error == 0)
        error = fs_.client().ask({request_code::emptied, file.handle, 0, launch}).result;
      emptied_by.store_release(error == 0 ? launch : s.before);
    }
    return g_.broadcast(error);
  }

  // Installs the pages of a small file, whose bytes came completely with the answer, from the
  // staging memory, without further requests.
  GPUFS_HD void install(const step& s, std::uint32_t turn) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(s.result);
    if (bytes == 0 || bytes != s.view.size || s.view.node != no_node) return;
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const char* staging = fs_.channel.staging(turn);
    page_cache<Group> cache(fs_, g_, s.view.record);
    for (std::uint64_t at = 0, page = 0; at < bytes; at += page_bytes, ++page) {
      const std::uint64_t n = bytes - at < page_bytes ? bytes - at : page_bytes;
      cache.offer({s.view.version, page}, [&](char* to) {
        copy_from_host(g_, to, staging + at, n);
        fill_zero(g_, to + n, page_bytes - n);
        if (g_.is_leader()) {
          fs_.counters().add(counter::open_loads);
          fs_.counters().add(counter::open_bytes, n);
          file_counts& counters = fs_.counts_of(s.view.record);
          counters.page_loads.add_relaxed(1);
          counters.loaded_bytes.add_relaxed(n);
        }
        return static_cast<std::int32_t>(n);
      });
    }
  }

  const mount_ref& fs_;
  const Group& g_;
  record_table records_;
};

// Whether the bytes that the last flush left dirty are lost, with this error. Not if the service is
// dead. Collective.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE bool gives_up(const mount_ref& fs, const Group g, std::uint32_t node,
                                         std::int32_t error) {
  std::uint32_t yes = 0;
  if (g.is_leader() && !fs.client().is_dead()) {
    yes = 1;
    std::int32_t none = 0;
    // Release: pairs with the acquire in close_on_host().
    if (fs.node(node).dirty.load_acquire() != 0)
      (void)fs.node(node).given_up.compare_exchange_acq_rel(none, error);
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
// If there are none, the bytes are lost: the last writer sets `closing`, flushes again, and gives
// up the rest. The close of the file reports that to the host. But if the service is dead, the
// bytes stay dirty and the file stays open in the host, and the end of the mount writes them.
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
  if (flushed == 0 || gives_up(fs, g, file.node, flushed)) {
    if (flushed != 0) {
      (void)by_one_warp(g, [&](const one_warp_of<Group>& part) {
        write_back(fs, part).discard(file.version, file.node);
        return 0;
      });
    }
    // Descriptors that are opened from now on write other bytes.
    if (g.is_leader()) {
      node.failed.store_relaxed(0);
      node.closings.add_relaxed(1);
    }
  }
  // Release: pairs with the acquire in join_writers(); a group may have joined while `closing` was
  // set.
  if (g.is_leader()) (void)node.writers.fetch_and_acq_rel(~inode_state::closing);
  return g.broadcast(error);
}

// Gives back one holder of a descriptor. For a descriptor that may write its file, returns the
// result of the flush. Collective. Waits for the host only for such a descriptor.
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
    if (s.result == 0) s.was = records.let_go(found.view.record, found.tag, writes);
    if (s.was == holding::none) s.result = -EBADF;
    // A file that only reads loses nothing.
    else if (!writes) (void)records.unpin(s.view.record);
  }
  // The usual case is a file that only reads; keep it cheap.
  if constexpr (!Group::is_one_thread) s = g.broadcast(s);
  if (s.was == holding::none || (s.view.access & access_write) == 0) return s.result;
  s.result = leave_writers(fs, g, s.view, s.was == holding::last);
  if (s.was == holding::last) {
    // The host may close the file later, when no call is left to report an error to.
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
