// The page cache: loads a page into a frame and pins it there. slot_state.cuh has the state
// machine; this file has the order of its steps in a page fault.
//
//   find and pin --resident----------------------------------------------> hit
//        |   \---loading---> wait, with this pin and no unloaded page ---> minor fault
//      absent
//        |
//   claim a frame (evict the oldest page)
//        |
//   begin_load: set the key, insert it into the index --lost race--> give the frame back, retry
//        |
//   load the bytes (direct or staged) -> publish -> reclaim ahead -------> major fault
//
// Runs: before a fault, and before a hit of a marked page, a group may load a run of the pages that
// follow (file/bulk.cuh). The run ends before the group waits for another group's page. So a hit of
// a marked page may wait for the host.
//
// Progress: no latch is held across a load, a copy or a wait. A group waits for another group's
// load only while it has no unloaded frame of its own, so waits form no cycle. Each load ends
// (channel/client.cuh).
//
// No free frame: a group waits while the cache makes progress, that is, while frames are loaded,
// get other pages, or dirty pages are written back. After `reclaim_timeout_ns` without progress, or
// after the request timeout in total, the call returns -ENOBUFS and holds nothing.
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/arena.cuh"
#include "gpufs/cache/frame_search.cuh"
#include "gpufs/cache/frame_table.cuh"

namespace gpufs {

struct page_key {
  std::uint64_t version;
  std::uint64_t page;
  GPUFS_HD slot_key slot() const { return {version, page}; }
};

// A pinned page, or an error; with an error nothing is pinned.
struct page_pin {
  std::uint32_t frame;
  // Bytes of the page that the file has; or -errno.
  std::int32_t valid;
};

namespace detail {

// Pages that a warp pins at once, to copy out of them or into them.
inline constexpr std::uint32_t pins_of_copy = 8;

// Whether the group loads runs (file/bulk.cuh) and acts on marks. A few threads of a GPU would need
// longer for a run than the run takes.
template <class Group>
GPUFS_HD bool loads_runs(const Group& g) {
  return !platform::is_gpu || (!Group::is_one_thread && g.size() >= 8);
}

}  // namespace detail

template <class Group>
class page_cache : detail::frame_search<Group> {
 public:
  // `record`: the open file whose hits are counted.
  GPUFS_HD page_cache(const mount_ref& fs, const Group& g, std::uint32_t record)
      : base(fs, g), record_(record) {}

  // Pins the page. If the page is absent, all members call `load(frame_bytes)`: it fills the
  // frame's memory and returns how many bytes the file has there, or -errno. Collective. Waits for
  // I/O.
  template <class Load>
  GPUFS_HD page_pin acquire(const page_key& key, const Load& load) {
    page_pin pin{};
    if (g_.is_leader()) pin = take_counted(key.slot());
    pin = g_.broadcast(pin);
    if (pin.valid >= 0) return pin;
    auto ahead = why_ahead::missing;
    if (pin.valid == marked) ahead = unmark(pin.frame) ? why_ahead::mark : why_ahead::none;
    return find_or_load(fs_, g_, record_, key, load, ahead);
  }

  // In `valid`: the page is not resident, or the fast path did not find it. Not an errno.
  static constexpr std::int32_t not_there = -0x7fffffff - 1;

  // The fast path of acquire(): pins the page if the index's guess finds it resident and unmarked;
  // otherwise `valid` is `not_there`. The caller calls count_hits() next. Collective. Does not
  // wait. `dirt`: as in pin_several(), in the leader.
  template <slot_header::use for_what = slot_header::use::loads>
  GPUFS_HD page_pin find_resident(const page_key& key, std::uint32_t* dirt = nullptr) {
    page_pin pin{};
    if (g_.is_leader()) pin = take_at_a_glance<for_what>(key.slot(), dirt);
    if (pin.valid == marked) pin.valid = not_there;
    return g_.broadcast(pin);
  }
  GPUFS_HD void count_hits() {
    if (g_.is_leader()) count_hit(counter::hits);
  }

  // Pins pages `first`, `first` + 1, ... by the fast path, up to the first page that it does not
  // find; at most `count`, which is at most the group's size. Returns how many. The member with
  // rank i has page `first` + i in `mine`. All members look at once, so all pages cost the latency
  // of one page. Collective; not for blocks. Does not wait. For stores, `dirt` gets the flags of
  // the member's page (frame_dirt) from before the pin.
  template <slot_header::use for_what = slot_header::use::loads>
  GPUFS_HD std::uint32_t pin_several(std::uint64_t version, std::uint64_t first,
                                     std::uint32_t count, page_pin& mine,
                                     std::uint32_t* dirt = nullptr) {
    mine = {0, not_there};
    if (g_.rank() < count) mine = take_at_a_glance<for_what>({version, first + g_.rank()}, dirt);
    if (mine.valid == marked) mine.valid = not_there;
    const std::uint32_t pinned = g_.leading(mine.valid != not_there);
    // A ballot orders no memory: this lets all members read what each one acquired.
    g_.sync();
    count_hits_of(g_.rank() < pinned);
    if (g_.rank() >= pinned && mine.valid != not_there) frames_.unpin(mine.frame);
    return pinned;
  }
  // As pin_several(), for any pages: one for each member with `wanted`. Returns whether the
  // member's page is pinned.
  GPUFS_HD bool pin_each(std::uint64_t version, std::uint64_t page, bool wanted, page_pin& mine) {
    mine = {0, not_there};
    if (wanted) mine = take_at_a_glance({version, page});
    if (mine.valid == marked) mine.valid = not_there;
    // As in pin_several().
    g_.sync();
    const bool pinned = mine.valid != not_there;
    count_hits_of(pinned);
    return pinned;
  }
  // Unpins the first `count` pages after copies out of them (see release_copied).
  GPUFS_HD void release_several(std::uint32_t count, const page_pin& mine) {
    release_each(g_.rank() < count, mine);
  }
  GPUFS_HD void release_each(bool pinned, const page_pin& mine) {
    g_.sync();
    if (!pinned) return;
    if constexpr (Group::is_one_thread) frames_.unpin(mine.frame);
    else frames_.header(mine.frame).state.unpin_copied();
  }

  // Pins a page for each member with `wanted`, and returns it. First all members try the fast path
  // at once; then all members together acquire each missing page in turn. `load_of(page)` returns
  // the `load` of acquire(). Collective. Waits for I/O.
  template <class LoadOf>
  GPUFS_HD page_pin acquire_each(std::uint64_t version, std::uint64_t page, bool wanted,
                                 const LoadOf& load_of) {
    page_pin mine{0, 0};
    if (wanted) mine = take_at_a_glance({version, page});
    if (mine.valid == marked) mine.valid = not_there;
    // As in pin_several().
    g_.sync();
    count_hits_of(wanted && mine.valid >= 0);
    if (g_.leading(mine.valid != not_there) == g_.size()) return mine;
    return acquire_missing(fs_, g_, record_, version, page, mine, load_of);
  }

  // For bytes that arrived without a request. Caches the page if it is absent and one round finds a
  // frame; leaves it unpinned. `load`: as in acquire(). Collective. Does not wait.
  template <class Load>
  GPUFS_HD void offer(const page_key& key, const Load& load) {
    step s{};
    if (g_.is_leader()) s = claim_if_absent(key.slot());
    s = g_.broadcast(s);
    if (s.what != outcome::claimed) return;
    const page_pin pin = fill(s.pin.frame, key.slot(), load);
    if (pin.valid >= 0) release(pin.frame);
  }

  // Unpins. Collective: all members' reads of the page come before.
  GPUFS_HD void release(std::uint32_t frame_number) {
    g_.sync();
    if (g_.is_leader()) frames_.unpin(frame_number);
  }
  // As release(), after a copy out of the page into memory that all members see. Each loaded value
  // was stored there, so every load is over and no fence is needed. (A single thread's copy may go
  // to registers, with loads still in flight.)
  GPUFS_HD void release_copied(std::uint32_t frame_number) {
    if constexpr (Group::is_one_thread) {
      release(frame_number);
    } else {
      g_.sync();
      if (g_.is_leader()) frames_.header(frame_number).state.unpin_copied();
    }
  }

 private:
  using base = detail::frame_search<Group>;
  using base::begin_search, base::free_some, base::gives_up, base::lived, base::some_are_dirty;
  using base::frames_, base::fs_, base::g_;
  using typename base::search;

  // In `valid`: the page is resident and marked (slot_header::read_ahead), and not pinned. Not an
  // errno.
  static constexpr std::int32_t marked = not_there + 1;
  static constexpr std::uint32_t no_guess = ~0u;

  // Why a group considers a run: the page is missing, or the group has cleared the page's mark.
  enum class why_ahead : std::uint32_t { none, missing, mark };

  // The slow path of acquire(). Out of line, with all arguments by value: otherwise each hit would
  // pay for the registers that the compiler spills for a miss.
  template <class Load>
  GPUFS_HD GPUFS_OUT_OF_LINE static page_pin find_or_load(const mount_ref& fs, const Group g,
                                                          std::uint32_t record, const page_key key,
                                                          const Load load, why_ahead ahead) {
    if constexpr (looks_ahead<Load>()) {
      if (ahead != why_ahead::none) load.look_ahead(ahead == why_ahead::mark);
    }
    page_cache cache(fs, g, record);
    step s{};
    if (g.is_leader()) s = cache.find_or_claim_at_once(key.slot());
    s = g.broadcast(s);
    if (s.what == outcome::starved) s = search_for_frame(fs, g, record, key);
    if (s.what != outcome::claimed) return s.pin;
    return cache.fill(s.pin.frame, key.slot(), load);
  }

  // Acquires in turn the pages of the members for which acquire_each() found none. Out of line for
  // the same reason as find_or_load().
  template <class LoadOf>
  GPUFS_HD GPUFS_OUT_OF_LINE static page_pin acquire_missing(const mount_ref& fs, const Group g,
                                                             std::uint32_t record,
                                                             std::uint64_t version,
                                                             std::uint64_t page, page_pin mine,
                                                             const LoadOf load_of) {
    page_cache cache(fs, g, record);
    for (;;) {
      const std::uint32_t next = g.leading(mine.valid != not_there);
      if (next == g.size()) return mine;
      const std::uint64_t missing = g.from(page, next);
      const page_pin pin = cache.acquire({version, missing}, load_of(missing));
      if (g.rank() == next) mine = pin;
    }
  }

  // Whether the load may request other pages before its own (file/load.cuh).
  template <class Load>
  GPUFS_HD static constexpr bool looks_ahead() {
    if constexpr (requires { Load::looks_ahead; }) return Load::looks_ahead;
    else return false;
  }

  enum class outcome : std::uint32_t { absent, pinned, failed, claimed, starved };
  struct step {
    outcome what;
    page_pin pin;
  };
  // Called when the first attempt found no frame. Out of line: few misses need a frame search, and
  // each one would pay for its state.
  GPUFS_HD GPUFS_OUT_OF_LINE static step search_for_frame(const mount_ref& fs, const Group g,
                                                          std::uint32_t record,
                                                          const page_key key) {
    page_cache cache(fs, g, record);
    search wait = begin_search();
    step s{};
    for (std::uint32_t first_round = 0;; first_round = 1) {
      if (g.is_leader()) s = cache.find_or_claim(key.slot(), wait, first_round);
      s = g.broadcast(s);
      if (s.what != outcome::starved) return s;
      const bool frees = cache.free_some(key.slot());
      if (frees && g.is_leader() && cache.lived(wait) < fs.timeouts.request_ns)
        wait.moved = wait.lived;
    }
  }

  // Counts all members' hits in one addition. Additions by each member to one word would be
  // serialized.
  GPUFS_HD void count_hits_of(bool hit) {
    const std::uint32_t hits = g_.count(hit);
    if (hits == 0 || !g_.is_leader()) return;
    fs_.counters().add(counter::hits, hits);
    fs_.counts_of(record_).hits.add_relaxed(hits);
  }

  // ---- Called by the leader.

  GPUFS_HD void count_hit(counter kind) {
    fs_.counters().add(kind);
    fs_.counts_of(record_).hits.add_relaxed(1);
  }

  // The fast path: pins the frame that the index guesses, if it is resident and holds the page.
  // Called by one thread. Does not wait.
  template <slot_header::use for_what = slot_header::use::loads>
  GPUFS_HD page_pin take_at_a_glance(const slot_key& key,
                                     [[maybe_unused]] std::uint32_t* dirt = nullptr) {
    const std::uint32_t guess = frames_.index().guess(key) - 1;
    if (guess == no_guess) return {0, not_there};
    // Requested together with the pin, for one latency. The wait below is needed: the flags must be
    // from before the caller stores into the page.
    std::uint32_t flags = 0;
    if constexpr (for_what == slot_header::use::stores)
      flags = fs_.dirt(guess).flags.load_for_wait();
    const slot_header::seen pinned = frames_.header(guess).template pin_and_look<for_what>();
    if constexpr (for_what == slot_header::use::stores) {
      platform::wait_for_arrival(flags);
      *dirt = flags;
    }
    const bool there = slot_state::phase(pinned.state) == slot_phase::resident &&
                       pinned.key == key && (pinned.valid & slot_header::unknown) == 0;
    if (there && ((pinned.valid & slot_header::read_ahead) == 0 || !detail::loads_runs(g_)))
      return {guess, static_cast<std::int32_t>(pinned.valid & ~slot_header::read_ahead)};
    frames_.unpin(guess);
    return {guess, there ? marked : not_there};
  }
  GPUFS_HD page_pin take_counted(const slot_key& key) {
    const page_pin pin = take_at_a_glance(key);
    if (pin.valid >= 0) count_hit(counter::hits);
    return pin;
  }

  // Whether this group clears the mark. The frame may hold another page by now; then that page
  // loses its mark.
  GPUFS_HD bool unmark(std::uint32_t frame_number) {
    std::uint32_t mine = 0;
    if (g_.is_leader()) {
      atomic_word<std::uint32_t>& valid = frames_.header(frame_number).valid;
      std::uint32_t seen = valid.load_relaxed();
      mine = (seen & slot_header::read_ahead) != 0 &&
                     valid.compare_exchange_relaxed(seen, seen & ~slot_header::read_ahead)
                 ? 1
                 : 0;
    }
    return g_.broadcast(mine) != 0;
  }

  // One attempt, and a second one if another group was first with this page. Returns `starved` when
  // no frame was found, or another group was first twice.
  GPUFS_HD step find_or_claim_at_once(const slot_key& key) {
    GPUFS_NO_UNROLL
    for (std::uint32_t attempt = 0; attempt < 2; ++attempt) {
      const step found = found_by(frames_.index().lookup_inline(key));
      if (found.what != outcome::absent) return found;
      const step begun = begin(key, 0);
      if (begun.what == outcome::claimed) return begun;
      if (begun.what != outcome::absent) break;
    }
    return {outcome::starved, {}};
  }

  // Repeats rounds until one finds the page or a frame, or the group gives up. Returns `starved`
  // when no frame was found, but a write-back may free some.
  GPUFS_HD step find_or_claim(const slot_key& key, search& wait, std::uint32_t first_round) {
    for (std::uint32_t round = first_round;; ++round) {
      const step found = found_by(frames_.index().lookup(key));
      if (found.what != outcome::absent) return found;
      const step begun = begin(key, round);
      if (begun.what == outcome::claimed) return begun;
      if (begun.what == outcome::absent) {
        // The next round is 0. Another group was first: the page is resident now, or was a moment
        // ago.
        round = ~0u;
        // The page may be evicted again before this group pins it, so retries are bounded.
        if (lived(wait) <= fs_.timeouts.request_ns) continue;
      }
      if (begun.what == outcome::absent || gives_up(key, wait)) {
        fs_.counters().add(counter::no_frames);
        return {outcome::failed, {0, -ENOBUFS}};
      }
      if (fs_.writes() && some_are_dirty()) return {outcome::starved, {}};
      platform::pause(64 + round);
    }
  }

  GPUFS_HD step claim_if_absent(const slot_key& key) {
    const pinned_slot there = frames_.index().find_and_pin(key);
    if (there.found) {
      frames_.unpin(there.slot);
      return {outcome::absent, {}};
    }
    const step begun = begin(key, 0);
    return begun.what == outcome::claimed ? begun : step{outcome::absent, {}};
  }

  GPUFS_HD step found_by(const lookup_result& r) {
    // Failed without an error means: retry as absent. A run that ended early releases its pages so
    // (file/bulk.cuh). It also happens when a caller unpinned a page once too often, and the slot
    // changed despite the waiter's pin.
    if (r.what == lookup_result::kind::absent ||
        (r.what == lookup_result::kind::failed && r.error >= 0))
      return {outcome::absent, {}};
    count_hit(r.waited ? counter::minor_faults : counter::hits);
    if (r.what == lookup_result::kind::failed) return {outcome::failed, {0, r.error}};
    const std::uint32_t valid =
        frames_.header(r.slot).valid.load_relaxed() & ~slot_header::read_ahead;
    return {outcome::pinned, {r.slot, static_cast<std::int32_t>(valid)}};
  }

  // Claims a frame for an absent page: a free one, otherwise by eviction. Returns `claimed`;
  // `absent` when another group was first; `failed` when this round found no frame.
  GPUFS_HD step begin(const slot_key& key, std::uint32_t round) {
    using index = hash_index<detail::frame_table>;
    const index::begin_result r = begin_load(frames_.index(), frames_.rings(), key, round);
    if (r.what == index::begun::yes) return {outcome::claimed, {r.slot, 0}};
    if (r.what == index::begun::no_slot) return {outcome::failed, {}};
    fs_.counters().add(counter::lost_races);
    return {outcome::absent, {}};
  }

  // ---- Called by the whole group.

  template <class Load>
  GPUFS_HD page_pin fill(std::uint32_t frame_number, const slot_key& key, const Load& load) {
    const std::uint64_t start = platform::now_ns();
    const std::int32_t valid = load(fs_.page(frame_number));
    // Orders all members' stores before the leader's release in publish().
    g_.sync();
    if (g_.is_leader()) {
      frame& f = frames_.at(frame_number);
      GPUFS_SCHEDULE_POINT("cache.publish");
      if (valid >= 0) {
        f.header.valid.store_relaxed(static_cast<std::uint32_t>(valid));
        f.header.state.publish();
        fs_.counters().add_latency(platform::elapsed_ns(start));
      } else {
        fs_.counters().add(counter::load_errors);
        frames_.index().fail_load(key, frame_number, valid);
      }
    }
    ring_set<detail::frame_table> all = frames_.rings();
    const std::uint32_t evicted = all.reclaim_ahead(g_, all.ring_of(key));
    if (evicted != 0) fs_.counters().add(counter::reclaims, evicted);
    return {frame_number, valid};
  }

  std::uint32_t record_;
};

}  // namespace gpufs
