// Sends bytes from device code to a sink of the host: gsend is made of this.
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/arena.cuh"

namespace gpufs::detail {

template <class Group>
GPUFS_HD std::int64_t send_bytes(const Group& g, const mount_ref& fs, std::int32_t sink,
                                 const void* data, std::uint64_t bytes) {
  if (sink < 0) return -EBADF;
  if (bytes == 0) return 0;
  if (data == nullptr) return -EFAULT;
  std::uint64_t sent = 0;
  while (sent < bytes) {
    std::int32_t acquired = 0;
    if (g.is_leader()) acquired = fs.client().acquire();
    acquired = g.broadcast(acquired);
    if (acquired < 0) return acquired;
    const auto channel_slot = static_cast<std::uint32_t>(acquired);
    const std::uint64_t room = fs.channel.layout.staging_bytes;
    const std::uint64_t n = bytes - sent < room ? bytes - sent : room;
    copy_to_host(g, fs.channel.staging(channel_slot), static_cast<const char*>(data) + sent, n);
    g.sync();  // All members' bytes come before the leader posts the request.
    std::int32_t result = 0;
    if (g.is_leader()) {
      const request asked{request_code::send, static_cast<std::uint32_t>(sink),
                          static_cast<std::uint32_t>(n), 0};
      result = fs.client().ask(channel_slot, asked).result;
      if (result >= 0) fs.counters().add(counter::sent_bytes, n);
    }
    result = g.broadcast(result);
    if (result < 0) return result;
    sent += n;
  }
  return static_cast<std::int64_t>(sent);
}

}  // namespace gpufs::detail
