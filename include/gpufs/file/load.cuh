// How the bytes of one page come: the direct path, else the staged path (design.md: "The GPU pulls pages").
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/extents.cuh"
#include "gpufs/cache/page_cache.cuh"

namespace gpufs::detail {

// What a load needs to know of an open file; equal in all members of the group.
struct file_view {
  std::uint64_t version;
  std::uint64_t size;
  std::uint32_t record;
  std::uint32_t handle;
};

template <class Group>
class page_loader {
 public:
  GPUFS_HD page_loader(const mount_ref& fs, const Group& g, const file_view& file, std::uint64_t page)
      : fs_(fs), g_(g), file_(file), offset_(page << fs.layout.page_shift) {}

  // Fills a frame; returns the bytes that the file has there, or -errno. Collective. Waits for I/O on the staged path.
  GPUFS_HD std::int32_t operator()(char* to) const {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const std::uint64_t left = file_.size - offset_;  // the caller asks only for pages that begin before the end
    const std::uint64_t want = left < page_bytes ? left : page_bytes;
    std::uint64_t address = 0;
    if (g_.is_leader()) address = extent_table(fs_).find(file_.version, offset_, want);
    address = g_.broadcast(address);
    // Staged when it is not mapped, or when (twin) the mapping has lost its file or the file its disk: the host says which.
    const bool whole = address != 0 && direct(to, address, want);
    const std::int32_t got = whole ? static_cast<std::int32_t>(want) : staged(to, want);
    if (got >= 0 && static_cast<std::uint64_t>(got) < page_bytes)
      fill_zero(g_, to + got, page_bytes - static_cast<std::uint64_t>(got));
    if (g_.is_leader() && got >= 0) {
      file_shard& counters = fs_.file_shard(file_.record);
      (void)counters.page_loads.fetch_add_relaxed(1);
      if (whole) (void)counters.direct_loads.fetch_add_relaxed(1);
      (void)counters.loaded_bytes.fetch_add_relaxed(static_cast<std::uint64_t>(got));
    }
    return got;
  }

 private:
  // Whether all of it could be copied.
  GPUFS_HD bool direct(char* to, std::uint64_t address, std::uint64_t want) const {
    if (copy_from_extent(g_, to, address, want) != want) return false;
    if (g_.is_leader()) {
      fs_.counters().add(counter::direct_loads);
      fs_.counters().add(counter::direct_bytes, want);
    }
    return true;
  }

  struct turn {
    std::int32_t slot;    // < 0: no slot of ours (none was to be had, or it was abandoned)
    std::int32_t result;  // bytes, or -errno
  };

  GPUFS_HD std::int32_t staged(char* to, std::uint64_t want) const {
    turn t{};
    if (g_.is_leader()) t.slot = fs_.client().acquire();
    t = g_.broadcast(t);
    if (t.slot < 0) return t.slot;
    const auto slot = static_cast<std::uint32_t>(t.slot);
    std::uint64_t done = 0;
    // A page larger than a staging slot comes in several turns.
    while (done < want) {
      const std::uint64_t piece =
          want - done < fs_.channel.layout.staging_bytes ? want - done : fs_.channel.layout.staging_bytes;
      if (g_.is_leader()) t = ask(slot, offset_ + done, static_cast<std::uint32_t>(piece));
      t = g_.broadcast(t);
      if (t.result < 0) break;
      const auto got = static_cast<std::uint64_t>(t.result);
      copy_from_host(g_, to + done, fs_.channel.staging(slot), got);
      g_.sync();  // all members have read the staging memory before the leader posts again or frees the slot
      done += got;
      if (got < piece) break;  // the file is shorter than when it was opened
    }
    if (g_.is_leader()) {
      if (t.slot >= 0) fs_.client().release(slot);
      if (t.result >= 0) {
        fs_.counters().add(counter::staged_loads);
        fs_.counters().add(counter::staged_bytes, done);
      }
    }
    return t.result < 0 ? t.result : static_cast<std::int32_t>(done);
  }

  // One request, by the leader.
  GPUFS_HD turn ask(std::uint32_t slot, std::uint64_t offset, std::uint32_t length) const {
    channel_client client = fs_.client();
    client.post(slot, {request_code::read, file_.handle, length, offset});
    const channel_client::answer answer = client.wait(slot);
    if (answer.abandoned) return {-1, answer.result};
    if (answer.result < 0 || (answer.result & notice_flag) == 0)
      return {static_cast<std::int32_t>(slot), answer.result};
    const reply_record& reply = fs_.channel.reply(slot);
    extent_table(fs_).insert(file_.version, reply.extent_number.load_relaxed(), reply.extent_address.load_relaxed(),
                             static_cast<std::uint32_t>(reply.extent_bytes.load_relaxed()));
    return {static_cast<std::int32_t>(slot), answer.result & ~notice_flag};
  }

  const mount_ref& fs_;
  const Group g_;
  const file_view file_;
  std::uint64_t offset_;
};

}  // namespace gpufs::detail
