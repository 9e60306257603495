// Loads one page: by the direct path, or by the staged path if that fails (design.md: "The GPU
// pulls pages"). If the following pages seem to be wanted too, it first loads those by the bulk
// path.
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/extents.cuh"
#include "gpufs/cache/page_cache.cuh"
#include "gpufs/file/bulk.cuh"

namespace gpufs::detail {

template <class Group>
class page_loader {
 public:
  // `sure`: how many pages after this one the caller is about to read.
  GPUFS_HD page_loader(const mount_ref& fs, const Group& g, const file_view& file,
                       std::uint64_t page, std::uint64_t sure = 0)
      : fs_(fs), g_(g), file_(file), offset_(page << fs.layout.page_shift), sure_(sure) {}

  // page_cache calls look_ahead() before it waits for the page or loads it. look_ahead() loads a
  // run of pages if that pays; this page may be the first of the run. A single thread of a GPU does
  // not: its part of a run would take longer than the copy.
  static constexpr bool looks_ahead = !(Group::is_one_thread && platform::is_gpu);
  // `marked`: the page was loaded ahead and bears a mark; its reader should load more ahead.
  // Collective. Waits for the host if it loads a run.
  GPUFS_HD void look_ahead(bool marked) const {
    // While a file is being written, the host may not have the bytes that a run would load.
    if (!loads_runs(g_) || file_.node != no_node) return;
    using bulk = bulk_loader<Group>;
    const std::uint64_t page = offset_ >> fs_.layout.page_shift;
    const auto why = bulk::reason_at(fs_, page, sure_, marked);
    if (why == bulk::reason::none) return;
    const bulk_run run = why == bulk::reason::sure ? bulk::begin(fs_, g_, file_, page, sure_ + 1)
                                                   : begin_run_ahead(page, why);
    if (run.count != 0) bulk::end(fs_, g_, file_, run);
  }

  // Fills a frame. Returns the bytes that the file has in the page, or -errno. Collective. Waits
  // for I/O on the staged path.
  GPUFS_HD std::int32_t operator()(char* to) const {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    source from{};
    if (g_.is_leader()) from = find_source();
    from = g_.broadcast(from);
    const std::uint64_t want = from.bytes, address = from.address;
    if (want == 0) {
      fill_zero(g_, to, page_bytes);
      return static_cast<std::int32_t>(page_bytes);
    }
    // Uses the staged path if the extent is not mapped. Also if (on the CPU device) the mapping has
    // lost its file, or the file its disk: the host then returns the error.
    const std::uint64_t start = address != 0 ? platform::now_ns() : 0;
    const bool whole = address != 0 && direct(to, address, want);
    const std::uint64_t page_number = offset_ >> fs_.layout.page_shift;
    if (whole && g_.is_leader() && bulk_loader<Group>::measures(page_number)) {
      fs_.at<bulk_state>(fs_.layout.bulk_shared)
          ->note_pull(start, platform::now_ns(),
                      bulk_loader<Group>::pulls_for_measure << fs_.layout.page_shift);
    }
    const std::int32_t got = whole ? static_cast<std::int32_t>(want) : staged(to, want);
    if (got >= 0 && static_cast<std::uint64_t>(got) < page_bytes)
      fill_zero(g_, to + got, page_bytes - static_cast<std::uint64_t>(got));
    if (g_.is_leader() && got >= 0) {
      file_counts& counters = fs_.counts_of(file_.record);
      counters.page_loads.add_relaxed(1);
      if (whole) counters.direct_loads.add_relaxed(1);
      counters.loaded_bytes.add_relaxed(static_cast<std::uint64_t>(got));
    }
    // In a file that is being written, bytes past the stored end are zeros. The page counts as
    // whole, because readers stop at the size that the file has when they read.
    return got >= 0 && file_.node != no_node ? static_cast<std::int32_t>(page_bytes) : got;
  }

 private:
  struct source {
    std::uint64_t address;  // where to copy the page from; 0: ask the host
    std::uint64_t bytes;    // bytes of the page in the host's file; 0: it is past the end
  };
  // Called by the leader. For a file that no descriptor writes, the caller asks only for pages that
  // begin before `file_.size`. For a file that is being written, `file_.size` may be old.
  GPUFS_HD source find_source() const {
    std::uint64_t end = file_.size;
    bool registered = true;
    if (file_.node != no_node) {
      const inode_state& node = fs_.node(file_.node);
      // Acquire: pairs with the release of the group that wrote the page back before it was
      // evicted.
      end = node.stored.load_acquire();
      if (end <= offset_) return {0, 0};
      registered = (node.cuts.load_relaxed() & inode_state::shrunk) == 0;
    }
    const std::uint64_t left = end - offset_, page_bytes = fs_.layout.page_bytes();
    const std::uint64_t want = left < page_bytes ? left : page_bytes;
    return {registered ? extent_table(fs_).find(file_.version, offset_, want) : 0, want};
  }

  // Many groups may want the same run. The group that claims the first page, in the usual way,
  // begins the run of the pages after it.
  GPUFS_HD bulk_run begin_run_ahead(std::uint64_t page,
                                    typename bulk_loader<Group>::reason why) const {
    using bulk = bulk_loader<Group>;
    bulk_run run{};
    const typename bulk::page_range ahead = bulk::place_ahead(fs_, g_, file_, page, why);
    if (ahead.count == 0) return run;
    const page_loader first(fs_, g_, file_, ahead.page);
    page_cache<Group> cache(fs_, g_, file_.record);
    cache.offer({file_.version, ahead.page}, [&](char* to) {
      run = bulk::begin(fs_, g_, file_, ahead.page + 1, ahead.count - 1);
      run.read_ahead = true;
      return first(to);
    });
    return run;
  }

  // Copies the page from the extent. False if not all of it could be copied.
  GPUFS_HD bool direct(char* to, std::uint64_t address, std::uint64_t want) const {
    if (copy_from_extent(g_, to, address, want) != want) return false;
    if (g_.is_leader()) {
      fs_.counters().add(counter::direct_loads);
      fs_.counters().add(counter::direct_bytes, want);
    }
    return true;
  }

  struct staged_answer {
    std::int32_t channel_slot;  // < 0: none was free, or it was abandoned
    std::int32_t result;        // bytes, or -errno
  };

  GPUFS_HD std::int32_t staged(char* to, std::uint64_t want) const {
    staged_answer t{};
    if (g_.is_leader()) t.channel_slot = fs_.client().acquire();
    t = g_.broadcast(t);
    if (t.channel_slot < 0) return t.channel_slot;
    const auto channel_slot = static_cast<std::uint32_t>(t.channel_slot);
    std::uint64_t done = 0;
    // A page larger than the memory of a channel slot needs several requests.
    while (done < want) {
      const std::uint64_t piece = want - done < fs_.channel.layout.staging_bytes
                                      ? want - done
                                      : fs_.channel.layout.staging_bytes;
      if (g_.is_leader()) t = ask(channel_slot, offset_ + done, static_cast<std::uint32_t>(piece));
      t = g_.broadcast(t);
      if (t.result < 0) break;
      const auto got = static_cast<std::uint64_t>(t.result);
      copy_from_host(g_, to + done, fs_.channel.staging(channel_slot), got);
      // All members have read the staging memory before the leader posts again or releases the
      // slot.
      g_.sync();
      done += got;
      if (got < piece) break;  // The file is shorter than when it was opened.
    }
    if (g_.is_leader()) {
      if (t.channel_slot >= 0) fs_.client().release(channel_slot);
      if (t.result >= 0) {
        fs_.counters().add(counter::staged_loads);
        fs_.counters().add(counter::staged_bytes, done);
      }
    }
    return t.result < 0 ? t.result : static_cast<std::int32_t>(done);
  }

  // Posts one request and waits for the answer. Called by the leader.
  GPUFS_HD staged_answer ask(std::uint32_t channel_slot, std::uint64_t offset,
                             std::uint32_t length) const {
    channel_client client = fs_.client();
    client.post(channel_slot, {request_code::read, file_.handle, length, offset});
    const channel_client::answer answer = client.wait(channel_slot);
    if (answer.abandoned) return {-1, answer.result};
    if (answer.result < 0) return {static_cast<std::int32_t>(channel_slot), answer.result};
    take_hint(fs_, file_.version, channel_slot, answer.result);
    return {static_cast<std::int32_t>(channel_slot), answer.result & ~hint_flag};
  }

  const mount_ref& fs_;
  const Group g_;
  const file_view file_;
  std::uint64_t offset_;
  std::uint64_t sure_;
};

}  // namespace gpufs::detail
