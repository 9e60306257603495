// gopen is made of this.
#pragma once

#include "gpufs/file/open_files.cuh"
#include "gpufs/file/size_use.cuh"

namespace gpufs::detail {

// A flag of opens for writing. The open gets a record of its own, which no other open shares. So it
// reaches the host, and opens the file that the path leads to now. open(2) does not use this bit.
inline constexpr std::int32_t open_unshared = 1 << 29;

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
  // is closed again, and the call returns this error, or that of the close if it has one.
  template <class Empty>
  GPUFS_HD std::int32_t open(const char* path, std::int32_t flags, std::uint32_t mode,
                             const Empty& empty) {
    step s{};
    if (g_.is_leader()) s = begin(path, flags, mode);
    s = g_.broadcast(s);

    const bool empties = (flags & O_TRUNC) != 0;
    if (s.channel_slot < 0) {
      if (s.result < 0 || !empties) return s.result;
      const std::int32_t error = empty_once(look_up(fs_, s.result).view, empty);
      if (error == 0) return s.result;
      // This close may be the last one, and discard bytes of groups that have closed the file
      // meanwhile. No other call returns that error, so it takes precedence.
      const std::int32_t closed = close_descriptor(fs_, g_, s.result);
      return closed != 0 ? closed : error;
    }
    // The host has opened the file. The staging memory may hold its first bytes.
    const auto channel_slot = static_cast<std::uint32_t>(s.channel_slot);
    install(s, channel_slot);
    g_.sync();
    if (g_.is_leader()) fs_.client().release(channel_slot);
    // If the file was empty when the host opened it, there is nothing to cut; only the other groups
    // of the launch must know.
    const bool is_empty = s.is_fresh && s.view.size == 0;
    const auto empty_if_need_be = [&](const file_view& file) { return is_empty ? 0 : empty(file); };
    const std::int32_t error = empties ? empty_once(s.view, empty_if_need_be) : 0;
    std::int32_t fd = error;
    if (g_.is_leader() && error != 0) fd = take_back(s.view, error);
    if (g_.is_leader() && error == 0) {
      begin_to_write(s.view.access, s.view.node);
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
    std::int32_t channel_slot;  // holds the answer; < 0: `result` ends the call
    // Descriptor or -errno; with a channel slot, the bytes of the file in the staging memory.
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
    constexpr std::int32_t known = O_ACCMODE | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL | O_TRUNC |
                                   O_APPEND | O_GWRONCE | open_unshared;
    const std::int32_t how = flags & O_ACCMODE;
    const bool writes = how == O_WRONLY || how == O_RDWR;
    if ((flags & ~known) != 0 || (how != O_RDONLY && !writes)) return 0;
    if (!writes && (flags & (O_TRUNC | O_APPEND | O_GWRONCE | open_unshared)) != 0) return 0;
    if ((flags & O_GWRONCE) != 0 && how != O_WRONLY) return 0;
    return (how != O_WRONLY ? access_read : 0u) | (writes ? access_write : 0u) |
           ((flags & O_APPEND) != 0 ? access_append : 0u) |
           ((flags & O_GWRONCE) != 0 ? access_once : 0u);
  }

  GPUFS_HD step begin(const char* path, std::int32_t flags, std::uint32_t mode) {
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
      // A key of its own, so that each such open reaches the host. All but one of the opens with
      // O_EXCL find that the file exists.
      if ((flags & (O_EXCL | open_unshared)) != 0)
        key.high += mix(~names.exclusive.fetch_add_relaxed(1));
    }
    const open_request wanted{access,
                              ((flags & O_NOFOLLOW) != 0 ? open_no_follow : 0u) |
                                  ((access & access_read) != 0 ? open_reads : 0u) |
                                  ((access & access_write) != 0 ? open_writes : 0u) |
                                  ((flags & O_CREAT) != 0 ? open_creates : 0u) |
                                  ((flags & O_EXCL) != 0 ? open_exclusive : 0u),
                              mode, may_change};

    hash_index<record_table> index = records_.index();
    std::uint32_t record = 0;
    const channel_client client = fs_.client();
    channel_client::deadline waiting = channel_client::begin_wait();
    for (std::uint32_t round = 0;; ++round) {
      // Each time other groups may open the file first, and fail because they did not pass O_CREAT.
      // The deadline bounds that.
      if (round != 0 && client.timed_out(0, waiting)) return done(-EIO);
      const lookup_result r = index.lookup_inline(key);
      // The group that failed to open the file may not have passed O_CREAT: then retry.
      if (r.what == lookup_result::kind::failed && (r.error != -ENOENT || (flags & O_CREAT) == 0))
        return done(r.error);
      if (r.what == lookup_result::kind::failed) continue;
      if (r.what == lookup_result::kind::resident) {
        fs_.counters().add(counter::reopens);
        // The pin of this lookup keeps the generation as it is.
        begin_to_write(access,
                       static_cast<std::uint32_t>(fs_.facts_of(r.slot).size.load_relaxed()));
        records_.at(r.slot).tag_holders.add_relaxed(1);
        return done(make_descriptor(r.slot, records_.at(r.slot).generation()));
      }
      const auto begun = begin_load(index, record_ring(), key, round);
      if (begun.what == hash_index<record_table>::begun::yes) {
        record = begun.slot;
        break;
      }
      // A record may become free in a moment, but a table full of open files stays full.
      if (begun.what == hash_index<record_table>::begun::no_slot && round >= 16)
        return done(-EMFILE);
      platform::pause(round);
    }
    const step s = ask(path, static_cast<std::uint32_t>(length), wanted, record);
    if (s.channel_slot < 0) index.fail_load(key, record, s.result);
    return s;
  }

  // How the host is to open a file.
  struct open_request {
    std::uint32_t access;
    std::uint32_t bits;  // of open_bits
    std::uint32_t mode;
    bool may_change;
  };

  GPUFS_HD step ask(const char* path, std::uint32_t length, const open_request& wanted,
                    std::uint32_t record) {
    channel_client client = fs_.client();
    const std::int32_t acquired = client.acquire();
    if (acquired < 0) return done(acquired);
    const auto channel_slot = static_cast<std::uint32_t>(acquired);
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
    open_file& file = records_.at(record);
    const std::uint32_t node = reply.node.load_relaxed();
    const std::uint32_t mode = reply.mode.load_relaxed();
    std::uint32_t access = wanted.access;
    // The mount cannot load pages of a file that cannot be read.
    if ((mode & unreadable_flag) != 0) access |= access_once;
    const file_view view{reply.version.load_relaxed(),
                         reply.size.load_relaxed(),
                         reply.handle.load_relaxed(),
                         record,
                         node,
                         access};
    if (node != no_node) {
      make_node(view, reply.emptied_by.load_relaxed());
      // Release: pairs with the acquire in run_writer::update_fetched(). Before the record is
      // published, so before any page is fetched through it.
      if ((access & access_once) == 0) fs_.node(node).may_fetch.store_release(1);
    }
    records_.describe(record, view.version,
                      node != no_node ? file_facts::size_in_node | node : view.size);
    file.modified_ns.store_relaxed(reply.modified_ns.load_relaxed());
    file.changed_ns.store_relaxed(reply.changed_ns.load_relaxed());
    file.inode.store_relaxed(reply.inode.load_relaxed());
    file.device.store_relaxed(reply.device.load_relaxed());
    records_.set_generation(record, file.generation() + 1, view.handle, (mode & 0xffffu) | access,
                            1);
    return {view, acquired, answer.result, (mode & fresh_flag) != 0};
  }

  // Fails an open that the host has already made. Returns `error`, or that of the close: the bytes
  // of other groups may have been written through this descriptor.
  GPUFS_HD std::int32_t take_back(const file_view& view, std::int32_t error) {
    open_file& file = records_.at(view.record);
    file.tag_holders.add_relaxed(~std::uint64_t{0});
    records_.set_generation(view.record, file.generation() + 1, 0, 0, 0);
    const std::int32_t closed = records_.close_on_host(view.record, view.handle, view.node, false);
    if (closed != 0) error = closed;
    records_.index().fail_load(file.header.key(), view.record, error);
    return error;
  }

  // Called by the leader before any group has the descriptor. Does nothing for one that only reads.
  GPUFS_HD void begin_to_write(std::uint32_t access, std::uint32_t node) const {
    if ((access & access_write) == 0) return;
    join_writers(fs_, node);
    if ((access & access_append) == 0) note_other_writes(fs_, node);
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
        node.timed_out.store_relaxed(0);
        node.settled.store_relaxed(0);
        node.failed.store_relaxed(0);
        node.discarded.store_relaxed(0);
        node.cuts.store_relaxed(0);
        node.dirty.store_relaxed(0);
        node.writers.store_relaxed(0);
        node.may_fetch.store_relaxed(0);
        node.emptied_by.store_relaxed(emptied_by);
        node.other_writes.store_relaxed(0);
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
  GPUFS_HD void install(const step& s, std::uint32_t channel_slot) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(s.result);
    if (bytes == 0 || bytes != s.view.size || s.view.node != no_node) return;
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const char* staging = fs_.channel.staging(channel_slot);
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

}  // namespace gpufs::detail
