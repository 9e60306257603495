// The bulk path: loads a run of absent pages with one copy. The run gets consecutive frames, and
// the host has the copy engine fill them: from the file's own pages if they are registered,
// otherwise from a buffer into which a copier of the service reads them. (design.md, "The GPU pulls
// pages"; GPUfs, ACM TOCS 32(1), section 5, copies single pages this way.)
//
// A group that misses a page, or finds it loading, may first load a run, and then continues with
// its page:
//
//   take a channel slot, and consecutive frames of one ring -> claim each frame, make its page
//   loading and findable -> post -> wait for the answer -> publish
//
// Other groups that want a page of the run find it loading, and wait for it as for any other load.
//
// Where a run begins:
// * (a) At the page itself, if the caller is about to read enough pages.
// * (b) Ahead of the page. A chunk is `chunk` aligned pages. The run is the first chunk after the
//   page that has no resident or loading page. Conditions: nearly all pages just before this page
//   are resident or loading; and, going back, at least as many chunks have resident or loading
//   pages as the chosen chunk is ahead. So a sequential reader gets more and more chunks under way,
//   and a random reader leaves no such pattern. Only one page of `step` checks this, so that other
//   pages do not pay for the check.
// * (c) In the same place, when a group reads a marked page. Two pages of each run of (b) bear a
//   mark. Without marks the reader, which misses nothing in the run, would pull every other chunk.
//   These runs are longer, because the host spends more time on each run than the engine needs to
//   copy a chunk.
//
// Many groups may want the same run of (b) or (c). The group that claims the first page of the
// chunk, like any absent page, begins the run after it. (b) and (c) also need a bus that is not
// busy: pulling a page takes at most `pull_ns_max`, and all pulls together bring at most
// `pull_rate_max`. Otherwise so many threads pull that the bus has no capacity left, and the engine
// gets little of it.
//
// Progress: as for a single page. A run holds unloaded frames while its group waits for the host,
// and waits for no other group's page. It begins only with a channel slot that was free, and never
// waits for frames. All runs together hold at most a quarter of the frames and half of the slots,
// because their groups may need another channel slot for the page that each loads by itself.
//
// Pages that the answer does not cover stop loading with error 0: their waiters retry and load them
// one by one. Without an answer the copy may still come, so the frames stay unused until the answer
// comes (unanswered_run).
//
// The driver may be busy until the kernel ends that waits for the run: a thread that copies to
// pageable memory after that kernel holds the driver's lock meanwhile. The service notices that its
// driver call does not return, and sets `stalled` in the reply. The group then stops waiting, as
// without an answer, and loads page by page, which needs no driver. So do groups whose runs the
// service refuses until the driver is free again.
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/extents.cuh"
#include "gpufs/cache/page_cache.cuh"

namespace gpufs::detail {

// The facts about an open file that a load needs. Equal in all members of the group.
struct file_view {
  std::uint64_t version;
  std::uint64_t size;
  std::uint64_t handle;
  std::uint32_t record;
  std::uint32_t node;    // inode state of a file that is being written; else no_node
  std::uint32_t access;  // access_bits, st_mode
};

// Adds the extent that the answer to a read describes, if any, to the extent table. Called by the
// leader.
GPUFS_HD inline void take_hint(const mount_ref& fs, std::uint64_t version,
                               std::uint32_t channel_slot, std::int32_t result) {
  if (result < 0 || (result & hint_flag) == 0) return;
  const reply_record& reply = fs.channel.reply(channel_slot);
  extent_table(fs).insert(version, reply.extent_number.load_relaxed(),
                          reply.extent_address.load_relaxed(),
                          static_cast<std::uint32_t>(reply.extent_bytes.load_relaxed()));
}

// A run under way. Equal in all members.
struct bulk_run {
  std::uint64_t page;   // the first page
  std::uint32_t frame;  // frame of the first page; the other frames follow
  std::uint32_t count;  // 0: no run
  std::uint32_t channel_slot;
  bool read_ahead;  // whether some of its pages get marks
};

// All public calls are collective.
template <class Group>
class bulk_loader {
 public:
  // Why to load a run. none: a search for one does not pay.
  enum class reason : std::uint32_t { none, sure, mark, pattern };

  // A quick check of a page that is missing, loading or marked, before the calls below. `sure`: how
  // many pages after it the caller is about to read.
  GPUFS_HD static reason reason_at(const mount_ref& fs, std::uint64_t page, std::uint64_t sure,
                                   bool marked) {
    const bulk_layout& bulk = fs.layout.bulk;
    if (bulk.most == 0) return reason::none;
    if (sure >= bulk.least) return marked ? reason::none : reason::sure;
    if (marked) return reason::mark;
    // Not only the low bits of the page number: groups that divide a file often have strides of a
    // power of two.
    return ((page ^ (page >> 6) ^ (page >> 12)) & (bulk.step - 1)) == 0 ? reason::pattern
                                                                        : reason::none;
  }

  // Whether to measure the pull of a page. One of many, so that not all pulls write one word.
  static constexpr std::uint64_t pulls_for_measure = 64;
  GPUFS_HD static bool measures(std::uint64_t page) { return mix(page) % pulls_for_measure == 0; }

  // Where ahead of `page` a run should begin, and how many pages it should have; 0 pages: nowhere.
  // Does not wait.
  struct page_range {
    std::uint64_t page;
    std::uint64_t count;
  };
  GPUFS_HD GPUFS_OUT_OF_LINE static page_range place_ahead(const mount_ref& fs, const Group g,
                                                           const file_view file, std::uint64_t page,
                                                           reason why) {
    return bulk_loader(fs, g, file).place_ahead_of(page, why);
  }

  // The first page of [page, stop) that is neither resident nor loading; `stop` if there is none. A
  // guess. Does not wait.
  GPUFS_HD GPUFS_OUT_OF_LINE static std::uint64_t first_absent(const mount_ref& fs, const Group g,
                                                               const file_view file,
                                                               std::uint64_t page,
                                                               std::uint64_t stop) {
    const bulk_loader loader(fs, g, file);
    for (; page < stop; page += g.size()) {
      const std::uint64_t mine = page + g.rank();
      const std::uint64_t first = g.least(mine < stop && !loader.is_there(mine) ? mine : stop);
      if (first < stop) return first;
    }
    return stop;
  }

  GPUFS_HD static std::uint64_t pages_of(const mount_ref& fs, const file_view& file) {
    return (file.size + fs.layout.page_bytes() - 1) >> fs.layout.page_shift;
  }

  // How many of the `wanted` pages from `page` on can be in one run; 0: too few for a run.
  GPUFS_HD static std::uint32_t fitting(const mount_ref& fs, const file_view& file,
                                        std::uint64_t page, std::uint64_t wanted) {
    const bulk_layout& bulk = fs.layout.bulk;
    std::uint64_t count = wanted < bulk.most ? wanted : bulk.most;
    const std::uint64_t extent_pages = std::uint64_t{1}
                                       << (fs.layout.extent_shift - fs.layout.page_shift);
    const std::uint64_t in_extent = extent_pages - (page & (extent_pages - 1));
    if (in_extent < count) count = in_extent;
    if (page >= pages_of(fs, file)) return 0;
    if (pages_of(fs, file) - page < count) count = pages_of(fs, file) - page;
    return count < bulk.least ? 0 : static_cast<std::uint32_t>(count);
  }

  // Begins a run of at most `wanted` pages from `page` on. Does not wait.
  GPUFS_HD GPUFS_OUT_OF_LINE static bulk_run begin(const mount_ref& fs, const Group g,
                                                   const file_view file, std::uint64_t page,
                                                   std::uint64_t wanted) {
    return bulk_loader(fs, g, file).begin_at(page, wanted);
  }

  // Waits for the answer to a run, and publishes its pages.
  GPUFS_HD GPUFS_OUT_OF_LINE static void end(const mount_ref& fs, const Group g,
                                             const file_view file, const bulk_run run) {
    bulk_loader(fs, g, file).wait_and_publish(run);
  }

 private:
  GPUFS_HD bulk_loader(const mount_ref& fs, const Group& g, const file_view& file)
      : fs_(fs), g_(g), file_(file), frames_(fs), index_(frames_.index()) {}

  GPUFS_HD slot_key key_of(std::uint64_t page) const {
    return page_key{file_.version, page}.slot();
  }
  GPUFS_HD bulk_state& shared() const { return *fs_.at<bulk_state>(fs_.layout.bulk_shared); }

  GPUFS_HD bulk_run begin_at(std::uint64_t page, std::uint64_t wanted) {
    bulk_run run{page, 0, fitting(fs_, file_, page, wanted), 0, false};
    if (run.count == 0) return run;
    const std::uint32_t ring = take_resources(run);
    if (run.count == 0) return run;
    const std::uint32_t taken = run.count;
    claim(run, ring);
    if (g_.is_leader()) {
      if (run.count < taken) give_back_frames(taken - run.count);
      if (run.count != 0) post(run);
      else give_back_slot(run);
    }
    return run;
  }

  // Whether a page is resident or loading. A guess is enough: a wrong one misses a run, or begins a
  // useless one.
  GPUFS_HD bool is_there(std::uint64_t page) const { return index_.guess(key_of(page)) != 0; }

  // The first chunk ahead that no group has begun, for a sequential reader of `page`.
  GPUFS_HD page_range place_ahead_of(std::uint64_t page, reason why) const {
    const bulk_layout& bulk = fs_.layout.bulk;
    constexpr page_range nowhere{0, 0};
    if (page < bulk.least || is_bus_busy(page)) return nowhere;
    if (why == reason::mark) {
      // A mark is evidence of a sequential reader by itself, and groups that read together are not
      // all at the same page. So more than half of the samples are enough.
      const std::uint32_t behind_it =
          page < bulk.chunk ? static_cast<std::uint32_t>(page) : bulk.chunk;
      if (samples_there(page - behind_it, behind_it) <= samples / 2) return nowhere;
    } else if (samples_there(page - bulk.least, bulk.least) < samples - 1) {
      // At most one sample may be missing, so that a random reader does not begin runs
      // (docs/decisions/file_calls.md).
      return nowhere;
    }
    const std::uint64_t chunk = page & ~std::uint64_t{bulk.chunk - 1};
    const std::uint32_t behind = untouched_chunk(chunk, false, 1, bulk.ahead);
    const std::uint32_t ahead = untouched_chunk(chunk, true, page == chunk ? 0 : 1, behind);
    const std::uint64_t place = chunk + std::uint64_t{ahead} * bulk.chunk;
    if (ahead > behind || place >= pages_of(fs_, file_)) return nowhere;
    // The first guessed runs are short. A reader of their pages gets longer runs, up to the length
    // that it has read.
    const std::uint64_t reach = std::uint64_t{behind - ahead + 1} * bulk.chunk;
    return {place, why == reason::mark && reach > bulk.chunk
                       ? (reach < bulk.most ? reach : bulk.most)
                       : bulk.chunk};
  }

  // Whether threads that pull pages keep the bus busy. Only asked for a page that would be pulled.
  GPUFS_HD bool is_bus_busy(std::uint64_t page) const {
    std::uint32_t busy = 0;
    if (g_.is_leader()) {
      const bool pulls = shared().pull_ns.load_relaxed() > pull_ns_max ||
                         shared().rate_at(platform::now_ns()) > pull_rate_max;
      busy = pulls && extent_table(fs_).find(file_.version, page << fs_.layout.page_shift, 1) != 0
                 ? 1
                 : 0;
    }
    return g_.broadcast(busy) != 0;
  }
  // Above these limits, runs only disturb the pulls (docs/decisions/file_calls.md). Nanoseconds per
  // page; bytes per microsecond.
  static constexpr std::uint32_t pull_ns_max = 60'000;
  static constexpr std::uint32_t pull_rate_max = 30'000;

  // How many samples of `count` pages from `first` on are resident or loading. The samples are at
  // uneven distances, so that a stride of a power of two does not look like a sequential reader.
  static constexpr std::uint32_t samples = 8;
  GPUFS_HD std::uint32_t samples_there(std::uint64_t first, std::uint32_t count) const {
    std::uint32_t n = 0;
    for (std::uint32_t i = g_.rank(); i < samples; i += g_.size())
      n += is_there(first + sample_of(i, samples, count)) ? 1u : 0u;
    return static_cast<std::uint32_t>(g_.sum(n));
  }
  // The page of sample `i` of `of`, of `count` consecutive pages.
  GPUFS_HD static std::uint32_t sample_of(std::uint32_t i, std::uint32_t of, std::uint32_t count) {
    const std::uint32_t distance = count / of == 0 ? 1 : count / of;
    return (distance * i + (5 * i + 3) % distance) % count;
  }

  // Distance in chunks, within [from, to], of the first chunk without a resident or loading sample;
  // to + 1 if there is none. A chunk before the start of the file counts as untouched.
  GPUFS_HD std::uint32_t untouched_chunk(std::uint64_t chunk, bool forward, std::uint32_t from,
                                         std::uint32_t to) const {
    const std::uint32_t pages = fs_.layout.bulk.chunk;
    for (std::uint32_t base = from; base <= to; base += g_.size()) {
      const std::uint32_t i = base + g_.rank();
      bool touched = false;
      if (i <= to && (forward || std::uint64_t{i} * pages <= chunk)) {
        const std::uint64_t away = std::uint64_t{i} * pages;
        const std::uint64_t first = forward ? chunk + away : chunk - away;
        for (std::uint32_t k = 0; k < samples && !touched; ++k)
          touched = is_there(first + sample_of(k, samples, pages));
      }
      const auto found = static_cast<std::uint32_t>(g_.least(touched || i > to ? to + 1 : i));
      if (found <= to) return found;
    }
    return to + 1;
  }

  // Acquires a channel slot and consecutive frames. `run.count` becomes the number of frames, 0 if
  // the group cannot have them at once. Returns the ring of the frames.
  GPUFS_HD std::uint32_t take_resources(bulk_run& run) {
    struct taken {
      std::uint32_t count, channel_slot, ring;
    } t{run.count, 0, 0};
    if (g_.is_leader()) {
      if (shared().unanswered_count.load_relaxed() != 0) free_unanswered();
      const bulk_layout& bulk = fs_.layout.bulk;
      const bool few = (shared().runs.fetch_add_relaxed(1) < bulk.runs_max) &
                       (shared().frames.fetch_add_relaxed(t.count) + t.count <= bulk.frames_max);
      const bool may = few && !shared().pauses(platform::now_ns());
      const std::int32_t channel_slot = may ? fs_.client().try_acquire() : -EAGAIN;
      if (channel_slot < 0) {
        shared().runs.add_relaxed(~0u);
        give_back_frames(t.count);
        t.count = 0;
      } else {
        t.channel_slot = static_cast<std::uint32_t>(channel_slot);
        // Rings take turns, so that they fill evenly.
        t.ring = shared().next_ring.fetch_add_relaxed(1) % fs_.layout.ring_count;
      }
    }
    t = g_.broadcast(t);
    run.channel_slot = t.channel_slot;
    run.count = 0;
    if (t.count == 0) return 0;
    const slot_range frames =
        frames_.rings().take_consecutive(g_, t.ring, t.count, fs_.layout.bulk.least);
    run.frame = frames.first;
    run.count = frames.count;
    if (g_.is_leader() && run.count < t.count) {
      give_back_frames(t.count - run.count);
      if (run.count == 0) give_back_slot(run);
    }
    return t.ring;
  }

  GPUFS_HD void give_back_frames(std::uint32_t count) const {
    shared().frames.add_relaxed(0u - count);
  }
  GPUFS_HD void give_back_slot(const bulk_run& run) const {
    fs_.client().release(run.channel_slot);
    shared().runs.add_relaxed(~0u);
  }

  // Makes the pages loading, up to the first page that is not absent or whose frame cannot be
  // claimed. `run.count` becomes the number of pages.
  GPUFS_HD void claim(bulk_run& run, std::uint32_t ring) {
    ring_set<frame_table> all = frames_.rings();
    const auto begin_load = [&](std::uint32_t i) {
      GPUFS_SCHEDULE_POINT("bulk.claim");
      return all.claim_slot(run.frame + i) &&
             index_.begin_load(key_of(run.page + i), run.frame + i);
    };
    // Claims the first page alone: if several groups ask for the same pages, one of them gets all,
    // instead of a few each.
    std::uint32_t begun = 0;
    if (g_.is_leader()) begun = begin_load(0) ? 1 : 0;
    if (g_.broadcast(begun) == 0) {
      if (g_.is_leader()) all.give_back(ring, run.frame, run.count);
      run.count = 0;
      return;
    }
    for (std::uint32_t base = 1; base < run.count; base += g_.size()) {
      const std::uint32_t i = base + g_.rank();
      const bool mine = i < run.count && begin_load(i);
      const auto stop =
          static_cast<std::uint32_t>(g_.least(mine || i >= run.count ? run.count : i));
      if (stop == run.count) continue;
      if (mine && i > stop) index_.fail_load(key_of(run.page + i), run.frame + i, 0);
      g_.sync();
      if (g_.is_leader()) all.give_back(ring, run.frame + stop, run.count - stop);
      run.count = stop;
    }
  }

  // Called by the leader.
  GPUFS_HD void post(const bulk_run& run) const {
    const std::uint64_t offset = run.page << fs_.layout.page_shift;
    const std::uint64_t bytes = std::uint64_t{run.count} << fs_.layout.page_shift;
    const auto length =
        static_cast<std::uint32_t>(file_.size - offset < bytes ? file_.size - offset : bytes);
    const bulk_target to{run.frame};
    copy_to_host(this_thread(), fs_.channel.staging(run.channel_slot),
                 reinterpret_cast<const char*>(&to), sizeof to);
    fs_.client().post(run.channel_slot, {request_code::bulk, file_.handle, length, offset});
  }

  GPUFS_HD void wait_and_publish(const bulk_run& run) {
    struct answered {
      std::uint64_t bytes;  // loaded bytes
      std::uint32_t staged;
      std::uint32_t abandoned;
    } answer{0, 0, 0};
    std::uint32_t sequence = 0;
    if (g_.is_leader()) {
      channel_client client = fs_.client();
      sequence = client.posted(run.channel_slot);
      const channel_client::answer a = client.wait(run.channel_slot, false, true);
      answer.abandoned = a.abandoned ? 1 : 0;
      if (a.result == -EAGAIN) shared().refused_ns.store_relaxed(platform::now_ns());
      if (a.result > 0) answer.bytes = static_cast<std::uint64_t>(a.result & bulk_bytes_mask);
      answer.staged = a.result > 0 && (a.result & staged_flag) != 0 ? 1 : 0;
      if (!a.abandoned) {
        take_hint(fs_, file_.version, run.channel_slot, a.result);
        give_back_slot(run);
      }
    }
    answer = g_.broadcast(answer);
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const std::uint64_t offset = run.page << fs_.layout.page_shift;
    // The bytes that the file has of the run: whole pages, except perhaps the last one.
    const std::uint64_t all = std::uint64_t{run.count} << fs_.layout.page_shift;
    const std::uint64_t bytes = file_.size - offset < all ? file_.size - offset : all;
    if (answer.bytes == bytes && bytes < all) {
      // The engine copied the bytes of the file. The rest of the last frame becomes zeros.
      fill_zero(g_, fs_.page(run.frame) + bytes, page_bytes - (bytes & (page_bytes - 1)));
    }
    // The barrier orders the stores of all members before the releases below.
    g_.sync();
    std::uint32_t loaded = 0;
    for (std::uint32_t i = g_.rank(); i < run.count; i += g_.size()) {
      const std::uint64_t begin = std::uint64_t{i} << fs_.layout.page_shift;
      const std::uint64_t valid = bytes - begin < page_bytes ? bytes - begin : page_bytes;
      const std::uint32_t frame_number = run.frame + i;
      frame& f = frames_.at(frame_number);
      GPUFS_SCHEDULE_POINT("bulk.publish");
      if (answer.abandoned != 0) {
        // The engine may still write into the frame. It stays in the state evicting, with the
        // loader's pin, until the answer comes (free_unanswered).
        f.header.set_failure(0);  // A waiter retries, and loads the page alone.
        f.header.state.fail_load();
        index_.remove(key_of(run.page + i), frame_number);
      } else if (begin + valid <= answer.bytes) {
        const bool marks = run.read_ahead && (i == 0 || i == run.count / 2);
        f.header.valid.store_relaxed(static_cast<std::uint32_t>(valid) |
                                     (marks ? slot_header::read_ahead : 0));
        f.header.state.publish();
        frames_.unpin(frame_number);
        ++loaded;
      } else {
        index_.fail_load(key_of(run.page + i), frame_number, 0);
      }
    }
    if (loaded != 0) {
      file_counts& counters = fs_.counts_of(file_.record);
      counters.page_loads.add_relaxed(loaded);
      if (answer.staged == 0) counters.direct_loads.add_relaxed(loaded);
      fs_.counters().add(counter::bulk_loads, loaded);
    }
    // All members have failed their pages before the leader lets other groups free the frames.
    if (answer.abandoned != 0) g_.sync();
    if (!g_.is_leader()) return;
    fs_.counts_of(file_.record).loaded_bytes.add_relaxed(answer.bytes);
    fs_.counters().add(counter::bulk_bytes, answer.bytes);
    if (answer.abandoned == 0) {
      give_back_frames(run.count);
    } else {
      shared().runs.add_relaxed(~0u);
      keep_unanswered(run, sequence);
    }
  }

  // Called by the leader.
  GPUFS_HD void keep_unanswered(const bulk_run& run, std::uint32_t sequence) const {
    using use = unanswered_run::use;
    GPUFS_NO_UNROLL
    for (unanswered_run& place : shared().unanswered) {
      if (!place.take(use::empty)) continue;
      place.channel_slot.store_relaxed(run.channel_slot);
      place.sequence.store_relaxed(sequence);
      place.frame.store_relaxed(run.frame);
      place.count.store_relaxed(run.count);
      place.give(use::kept);
      shared().unanswered_count.add_relaxed(1);
      return;
    }
  }
  // Frees the frames of runs that were answered after their groups gave up. Called by one thread.
  // Does not wait.
  GPUFS_HD GPUFS_OUT_OF_LINE void free_unanswered() {
    using use = unanswered_run::use;
    GPUFS_NO_UNROLL
    for (unanswered_run& place : shared().unanswered) {
      if (!place.take(use::kept)) continue;
      if (!fs_.client().is_answered(place.channel_slot.load_relaxed(),
                                    place.sequence.load_relaxed())) {
        place.give(use::kept);
        continue;
      }
      const std::uint32_t first = place.frame.load_relaxed(), count = place.count.load_relaxed();
      for (std::uint32_t i = 0; i < count; ++i) {
        frames_.at(first + i).header.state.release();
        frames_.unpin(first + i);
      }
      shared().unanswered_count.add_relaxed(~0u);
      place.give(use::empty);
      give_back_frames(count);
    }
  }

  const mount_ref& fs_;
  const Group g_;
  const file_view file_;
  frame_table frames_;
  hash_index<frame_table> index_;
};

}  // namespace gpufs::detail
