// Serves each request. It checks everything that a request says before it acts: a request comes
// from a kernel, which may write arbitrary bytes.
//
// Threads. Service threads call serve(), log_error() and prefetch(), several at a time.
// Each thread passes its own `known`. The service's supervisor calls report_stalled(). Locks: this
// class has none of its own; its parts are thread-safe, and each copier has its own run_stager.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "gpufs/base/limits.hpp"
#include "gpufs/channel/layout.cuh"
#include "service/extents.hpp"
#include "service/file_table.hpp"
#include "service/path_operations.hpp"
#include "service/run_stager.hpp"

namespace gpufs {

// The frames that a bulk request may fill.
struct bulk_frames {
  char* pages = nullptr;  // the device address of frame 0
  std::uint32_t page_shift = 0;
  std::uint32_t count = 0;
  std::uint64_t run_bytes_max = 0;
};

// Thread-safe as stated above.
class request_server {
 public:
  // `device_view`: the channel at its device addresses. `copiers`: the threads that serve bulk
  // requests. `stopping`: once true, no call waits for the device.
  request_server(device& d, const channel_view& channel, const channel_view& device_view,
                 const bulk_frames& frames, file_table& files, extent_registrar& extents,
                 unsigned copiers, const std::atomic<bool>& stopping);

  // The file that an open has opened. Handle 0: none.
  struct opened_file {
    std::uint64_t handle = 0;
    std::shared_ptr<host_file> file;  // null unless other files had the version open for writing
  };
  // Serves a claimed request that is not for a sink. `worker`: the calling thread's number in its
  // pool. Sets `opened` after a successful open. If it has a file before, opens that once more
  // (file_table::open_again()). Returns the result to reply, 0 or more, or -errno, or
  // run_stager::device_answers. Waits for I/O.
  std::int32_t serve(const request& r, std::uint32_t slot, std::uint32_t sequence, unsigned worker,
                     file_table::lookups& known, opened_file& opened);
  // An open that a worker answers. It belongs to the worker, not to the slot, which gets its next
  // request before the worker has closed what a withdrawn open has opened.
  struct open_in_hand {
    // The node + 1 of the file that it has made a writer of, or is making; else 0. Sequentially
    // consistent. Cleared when the worker is done with the open.
    std::atomic<std::uint64_t> joined{0};
    std::atomic<std::uint64_t> request{0};  // name_of(); set before `joined`
    static std::uint64_t name_of(std::uint32_t slot, std::uint32_t sequence) {
      return std::uint64_t{slot} << 32 | sequence;
    }
  };
  using opens_in_hand = std::array<open_in_hand, limits::workers_max>;
  const opens_in_hand& opens() const { return opens_; }  // by worker
  void done_with_open(unsigned worker) { opens_[worker].joined.store(0); }
  // Serves a sync, or the report of a close (file_table::ask()). Returns -errno, or 0 when `done`
  // was called or will be called, perhaps by another thread. Then `is_added` is set, also if an
  // exception of the backend leaves this function. Waits for I/O of this file only.
  // -EBUSY: an earlier request of the slot waits for a round, so a kernel has forged this one.
  int ask(const request& r, std::uint32_t slot, file_table::lookups& known,
          sync_rounds::answer done, std::shared_ptr<void> place, bool& is_added);
  // Records the failure of a write or sync in file_table::errors(), for the host, if the file is
  // open for writing.
  void log_error(const request& r, std::int32_t status) noexcept;
  // Loads the bytes of a claimed write request into the calling processor's caches.
  void prefetch(const request& r, std::uint32_t slot) const;
  // Tells the callers whose requests spend too long in the driver to go on without an answer.
  // Returns whether there are such requests. Called by the supervisor only. Does not wait for the
  // driver.
  bool report_stalled();
  // Does so for one request.
  void report_stalled(std::uint32_t slot, std::uint32_t sequence) const {
    // Relaxed: a hint that orders nothing.
    channel_.reply(slot).stalled.store_relaxed(sequence);
  }

 private:
  std::int32_t serve_open(const request& r, std::uint32_t slot, std::uint32_t sequence,
                          unsigned opener, opened_file& opened);
  std::int32_t deliver(host_file& file, std::uint64_t wanted, std::uint32_t slot);
  std::int32_t serve_read(const request& r, std::uint32_t slot, file_table::lookups& known);
  std::int32_t serve_write(const request& r, std::uint32_t slot, file_table::lookups& known);
  std::int32_t serve_truncate(const request& r, file_table::lookups& known);
  std::int32_t serve_emptied(const request& r, file_table::lookups& known);
  std::int32_t serve_close(const request& r, const file_table::lookups& known);
  std::int32_t serve_paths(const request& r, std::uint32_t slot, std::uint32_t sequence);
  // Returns a function: whether the caller of a request that changes files has withdrawn it.
  // Relaxed: the caller's next request came by a bell, whose acquire orders the withdrawal before
  // this load.
  auto given_up() const {
    return [this](std::uint32_t slot, std::uint32_t sequence) {
      return channel_.withdrawn(slot).load_relaxed() == sequence;
    };
  }
  std::int32_t serve_bulk(const request& r, std::uint32_t slot, std::uint32_t sequence,
                          unsigned copier, file_table::lookups& known);
  std::uint64_t readable_bytes(const file_table::lookups::entry& file, std::uint64_t offset,
                               std::uint64_t length) const;
  int reach_to_write(std::uint64_t handle, file_table::lookups& known,
                     file_table::lookups::entry*& file);
  std::int32_t tell_extent(std::uint32_t slot, const extent_location& location);

  device& device_;
  const channel_view channel_;
  const channel_view device_view_;
  const bulk_frames frames_;
  file_table& files_;
  extent_registrar& extents_;
  path_operations paths_;
  const std::atomic<bool>& stopping_;
  opens_in_hand opens_;
  std::vector<std::atomic<bool>> in_round_;  // by slot
  driver_gate gate_;
  std::vector<driver_gate::request_name> stalled_;  // used by the supervisor only
  std::deque<run_stager> stagers_;                  // one for each copier
};

}  // namespace gpufs
