#include "mount/plan.hpp"

#include <errno.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <bit>
#include <thread>

namespace gpufs {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw error(EINVAL, what);
}

std::uint64_t host_memory_bytes() {
  struct sysinfo info;
  return sysinfo(&info) == 0 ? std::uint64_t{info.totalram} * info.mem_unit : 0;
}

// With this minimum, uneven hashing and the lead (cache/ring.cuh) are only a few percent of a ring.
// So a cache that is an eighth larger than the data in use evicts nothing.
constexpr std::uint64_t ring_frames_min = 4096;

// The number of buckets for `slots` slots. The table is half full when all slots are in use, so few
// entries overflow their bucket.
std::uint64_t buckets_for(std::uint64_t slots) {
  return std::bit_ceil(slots * 2 / index_bucket::entry_count + 1);
}

}  // namespace

mount_options complete(const mount_options& asked, const device& d) {
  mount_options o = asked;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const bool gpu = o.device == device_kind::cuda;

  require(
      std::has_single_bit(o.page_bytes) && o.page_bytes >= limits::page_bytes_min &&
          o.page_bytes <= limits::page_bytes_max,
      "page size " + std::to_string(o.page_bytes) + ": must be a power of two from 512 B to 2 MiB");
  if (o.cache_bytes == 0) o.cache_bytes = gpu ? d.free_bytes() / 4 : std::uint64_t{256} << 20;
  o.cache_bytes = o.cache_bytes / o.page_bytes * o.page_bytes;
  require(o.cache_bytes >= 8 * o.page_bytes,
          "cache size: must hold at least 8 pages of " + std::to_string(o.page_bytes) + " bytes");
  require(o.cache_bytes / o.page_bytes <= limits::frames_max,
          "cache size: more pages than 2^32 - 16; use larger pages");

  require(!o.root || o.backend == nullptr,
          "root: only without a backend, which may have one of its own");
  if (o.workers == 0) o.workers = std::clamp(cores / 2, 1u, 8u);
  require(o.workers <= limits::workers_max, "workers: at most 256");
  if (o.channel_slots == 0) o.channel_slots = gpu ? 512 : 64;
  require(o.channel_slots <= limits::channel_slots_max, "channel slots: at most 4096");
  require(std::has_single_bit(o.staging_bytes) && o.staging_bytes >= limits::staging_bytes_min &&
              o.staging_bytes <= limits::staging_bytes_max,
          "staging size: must be a power of two from 8 KiB to 1 MiB");
  require(std::has_single_bit(o.write_bytes) && o.write_bytes <= limits::write_bytes_max,
          "write size: must be a power of two up to 4 MiB");
  if (o.read_only) o.write_bytes = o.staging_bytes;
  require(std::has_single_bit(o.extent_bytes) && o.extent_bytes >= o.page_bytes &&
              o.extent_bytes >= 65536 && o.extent_bytes <= (std::uint64_t{1} << 31),
          "extent size: must be a power of two, at least a page and 64 KiB, at most 2 GiB");
  if (o.extent_budget_bytes == ~std::uint64_t{0}) o.extent_budget_bytes = host_memory_bytes() / 2;
  const std::uint64_t frames = o.cache_bytes / o.page_bytes;
  if (o.rings == 0)
    o.rings = static_cast<unsigned>(
        std::clamp<std::uint64_t>(frames / ring_frames_min, 1, std::max(1u, d.multiprocessors())));
  require(o.rings <= frames, "rings: more than the cache has pages");
  require(o.reclaim_timeout.count() >= 0, "reclaim timeout: must not be negative");
  require(o.request_timeout.count() > 0, "request timeout: must be more than 0");
  require(o.unmount_timeout.count() >= 0, "unmount timeout: must not be negative");
  require(o.bulk_bytes <= limits::bulk_bytes_max, "bulk size: at most 16 MiB");
  require(o.open_files >= 1 && o.open_files <= limits::open_files_max,
          "open files: from 1 to 131,072");
  if (o.cpu_threads == 0) o.cpu_threads = cores;
  return o;
}

// A run must fit the part of the cache that one ring has. It must also be large enough: for less
// than a sixteenth of `bulk_bytes`, the copy engine takes longer than threads take to load the
// pages.
bulk_layout bulk_for(const mount_options& o, std::uint64_t frames) {
  bulk_layout b{};
  const std::uint64_t most = std::bit_floor(
      std::min({o.bulk_bytes / o.page_bytes, o.extent_bytes / o.page_bytes, frames / o.rings / 4}));
  const std::uint64_t least = std::max<std::uint64_t>(1, o.bulk_bytes / o.page_bytes / 16);
  if (most < 2 || most < least || o.channel_slots < 2) return b;
  b.most = static_cast<std::uint32_t>(most);
  b.least = static_cast<std::uint32_t>(least);
  b.chunk =
      static_cast<std::uint32_t>(std::max<std::uint64_t>({most / 4, std::bit_floor(least), 2}));
  b.ahead = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(frames / 4 / b.chunk, 1, 64));
  b.step = std::bit_floor(std::max(1u, b.chunk / 16));
  b.frames_max = static_cast<std::uint32_t>(frames / 4);
  b.runs_max = o.channel_slots / 2;
  return b;
}

arena_layout lay_out(const mount_options& o, unsigned multiprocessors, bool direct, bool bulk) {
  arena_layout l{};
  l.page_shift = static_cast<std::uint32_t>(std::countr_zero(o.page_bytes));
  l.frame_count = static_cast<std::uint32_t>(o.cache_bytes / o.page_bytes);
  l.ring_count = o.rings;
  l.processor_count = multiprocessors;
  l.file_count = o.open_files;
  l.bucket_count = buckets_for(l.frame_count);
  l.file_bucket_count = buckets_for(l.file_count);
  l.extent_shift = static_cast<std::uint32_t>(std::countr_zero(o.extent_bytes));
  // The extent table is at most half full. It has room for twice the whole extents in the budget,
  // and for many small files.
  if (bulk) l.bulk = bulk_for(o, l.frame_count);
  l.extent_slots =
      direct ? static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
                   std::bit_ceil(4 * (o.extent_budget_bytes / o.extent_bytes)), 16384, 1u << 20))
             : 0;

  std::uint64_t at = 0;
  const auto place = [&at](std::uint64_t bytes, std::uint64_t alignment = 128) {
    at = (at + alignment - 1) / alignment * alignment;
    const std::uint64_t here = at;
    at += bytes;
    return here;
  };
  l.buckets = place(sizeof(index_bucket) * l.bucket_count);
  l.frames = place(sizeof(frame) * std::uint64_t{l.frame_count});
  l.rings = place(sizeof(slot_ring) * std::uint64_t{l.ring_count});
  l.file_buckets = place(sizeof(index_bucket) * l.file_bucket_count);
  l.files = place(sizeof(open_file) * std::uint64_t{l.file_count});
  l.file_ring = place(sizeof(slot_ring));
  l.file_facts = place(sizeof(file_facts) * file_copies * std::uint64_t{l.file_count});
  l.file_counts = place(sizeof(file_counts) * file_copies * std::uint64_t{l.file_count});
  l.extent_head = place(sizeof(extent_table_head));
  l.extents = place(sizeof(extent_entry) * std::uint64_t{l.extent_slots});
  l.slots = place(sizeof(slot_record) * std::uint64_t{o.channel_slots});
  l.counters = place(sizeof(counter_set) * std::uint64_t{l.processor_count});
  l.bulk_shared = place(sizeof(bulk_state));
  if (!o.read_only) {
    // Twice the number of records, because closes arrive late.
    l.node_count = 2 * l.file_count;
    l.nodes = place(sizeof(inode_state) * std::uint64_t{l.node_count});
    l.names = place(sizeof(name_state));
    l.dirt = place(sizeof(frame_dirt) * std::uint64_t{l.frame_count});
    l.masks =
        place(sizeof(std::uint64_t) * mask_words(o.page_bytes) * std::uint64_t{l.frame_count});
  }
  l.pages = place(o.page_bytes * std::uint64_t{l.frame_count},
                  std::max<std::uint64_t>(4096, o.page_bytes));
  l.total_bytes = at;
  return l;
}

}  // namespace gpufs
