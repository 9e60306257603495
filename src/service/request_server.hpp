// What is done for each request. What a request says is checked here, before anything is done: it
// comes from a kernel, which may write what it likes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "gpufs/channel/layout.cuh"
#include "service/extents.hpp"
#include "service/file_table.hpp"
#include "service/path_operations.hpp"
#include "service/run_stager.hpp"

namespace gpufs {

// Where a bulk request's pages go.
struct bulk_frames {
  char* pages = nullptr;  // the device's address of frame 0
  std::uint32_t page_shift = 0;
  std::uint32_t count = 0;
  std::uint64_t run_bytes_max = 0;
};

// Thread-safe: by several threads at a time, each with lookups of its own.
class request_server {
 public:
  // `seen`: the channel as the device addresses it. `copiers`: threads that serve bulk requests.
  // `stopping`: nothing is waited for any more.
  request_server(device& d, const channel_view& channel, const channel_view& seen,
                 const bulk_frames& frames, file_table& files, extent_registrar& extents,
                 unsigned copiers, const std::atomic<bool>& stopping);

  // What an open has opened; handle 0: nothing.
  struct opened_file {
    std::uint64_t handle = 0;
    std::uint32_t node = no_node;
    bool joined = false;  // its version was being written already
  };
  // The result that answers the request in a slot, which is not for a sink, by thread `worker` of
  // its kind; or run_stager::device_answers.
  std::int32_t serve(const request& r, std::uint32_t slot, std::uint32_t sequence, unsigned worker,
                     file_table::lookups& known, opened_file& opened);
  // Keeps the failure of a request that writes, syncs or closes a file, for the host: see
  // file_table::errors().
  void keep_error(const request& r, std::int32_t status) noexcept;
  // Brings the bytes of a request to write, which the caller has claimed, into its processor's
  // caches.
  void bring_near(const request& r, std::uint32_t slot) const;
  // Tells callers whose requests are in the driver for too long to go on without them. Whether
  // there are any.
  bool report_stalled();
  // Tells the caller of one request.
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
  std::int32_t serve_sync(const request& r, file_table::lookups& known);
  std::int32_t serve_close(const request& r);
  std::int32_t serve_report_close(const request& r, file_table::lookups& known);
  std::int32_t serve_paths(const request& r, std::uint32_t slot, std::uint32_t sequence);
  // Whether the caller of a request that changes files has given up. Relaxed: what it asked for
  // afterwards came by a bell, which orders it behind this.
  auto given_up() const {
    return [this](std::uint32_t slot, std::uint32_t sequence) {
      return channel_.withdrawn(slot).load_relaxed() == sequence;
    };
  }
  std::int32_t serve_bulk(const request& r, std::uint32_t slot, std::uint32_t sequence,
                          unsigned copier, file_table::lookups& known);
  static std::uint64_t readable_bytes(const file_table::lookups::entry& file, std::uint64_t offset,
                                      std::uint64_t length);
  int reach_to_write(std::uint64_t handle, file_table::lookups& known,
                     file_table::lookups::entry*& file);
  std::int32_t tell_extent(std::uint32_t slot, const extent_hint& notice);

  device& device_;
  const channel_view channel_;
  const channel_view seen_;
  const bulk_frames frames_;
  file_table& files_;
  extent_registrar& extents_;
  path_operations paths_;
  driver_gate gate_;
  std::vector<driver_gate::request_name> stalled_;  // the supervisor's
  std::deque<run_stager> stagers_;                  // of each copier
};

}  // namespace gpufs
