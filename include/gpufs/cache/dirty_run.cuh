// A run: consecutive dirty pages of one file that a group takes for cleaning and writes back in one
// piece. Each member holds some of the pages, so the group finds, takes and releases them in
// parallel.
//
// A run lies in one stretch. A stretch is an aligned part of the file, as large as one write to the
// host can be. Groups that find pages of the same stretch try the same page first, so one of them
// takes the whole run.
//
// When the write of a run fails, its pages become `alone`: each is a run of its own until it is
// written. So one page that cannot be written does not block the others, and the whole run is not
// retried once per page.
#pragma once

#include "gpufs/cache/dirty.cuh"

namespace gpufs::detail {

// Called by one warp, or by one thread. Collective unless stated otherwise. No call waits.
template <class Group>
class dirty_run {
 public:
  GPUFS_HD dirty_run(const mount_ref& fs, const Group& g) : fs_(fs), g_(g) {}

  // Pages of a stretch, a power of two. Limited so that a few stretches do not cover a small cache.
  GPUFS_HD std::uint32_t stretch_pages() const {
    const std::uint64_t room = fs_.channel.layout.write_bytes_max() >> fs_.layout.page_shift;
    const std::uint64_t held = std::uint64_t{of_member} * g_.size(),
                        share = fs_.layout.frame_count / 8;
    std::uint64_t n = room < held ? room : held;
    n = n < share ? n : share;
    while ((n & (n - 1)) != 0) n &= n - 1;
    return n == 0 ? 1 : static_cast<std::uint32_t>(n);
  }

  // Takes a page, if it is dirty and no other group is cleaning it, and the dirty pages of its
  // stretch next to it.
  GPUFS_HD void take_around(std::uint32_t frame_number, const slot_key& key) {
    const dirty_bits seen = look(frame_number, key);
    const auto wanted = static_cast<std::uint32_t>(key.low - first_);
    if (!take_alone(seen, wanted)) take(seen.dirty | std::uint64_t{1} << wanted, wanted);
  }

  // Takes the longest run of dirty pages in the page's stretch, if it has `least` pages or fills
  // the stretch. Takes nothing if another group takes the run first; with `least` above 1, also if
  // another group is cleaning any page of the stretch.
  GPUFS_HD void take_longest(std::uint32_t frame_number, const slot_key& key, std::uint32_t least) {
    const dirty_bits seen = look(frame_number, key);
    if (least > pages_) least = pages_;
    contended_ = seen.cleaning != 0;
    if (least > 1 && contended_) return;
    std::uint32_t longest = 0, from = 0;
    for (std::uint32_t begin = 0, end = 0; begin < pages_; begin = end + 1) {
      for (end = begin; end < pages_ && (seen.dirty >> end & 1) != 0;) ++end;
      if (end - begin > longest) longest = end - begin, from = begin;
    }
    if (longest != 0 && longest >= least) return take(seen.dirty, from);
    if (least == 1) (void)take_alone(seen, static_cast<std::uint32_t>(key.low - first_));
  }

  GPUFS_HD std::uint32_t count() const { return count_; }
  // Whether take_longest() saw another group cleaning in the stretch.
  GPUFS_HD bool contended() const { return contended_; }
  // Number of the run's first page in the file.
  GPUFS_HD std::uint64_t first_page() const { return first_ + begin_; }
  GPUFS_HD std::uint64_t version() const { return version_; }
  // Whether the write needs a mask: some page is not dirty as a whole.
  GPUFS_HD bool masked() const { return masked_; }
  GPUFS_HD std::uint32_t node() const { return node_; }

  // The i-th page: its frame, and its dirty flags.
  struct page {
    std::uint32_t frame;
    std::uint32_t what;
  };
  GPUFS_HD page at(std::uint32_t i) const {
    const std::uint32_t n = begin_ + i, k = n / g_.size(), rank = n % g_.size();
    return {g_.from(frames_[k], rank), g_.from(what_[k], rank)};
  }

  // Lets the i-th page stay dirty although it is written.
  GPUFS_HD void keep_dirty(std::uint32_t i) { kept_ |= std::uint64_t{1} << (begin_ + i); }
  GPUFS_HD bool keeps_some_dirty() const { return kept_ != 0; }

  // Releases all pages: if `written`, clean, or with their dirty flags after keep_dirty();
  // otherwise with their dirty flags and `alone`.
  GPUFS_HD void end(bool written) {
    for_own(begin_, begin_ + count_, [&](std::uint32_t n, std::uint32_t k) {
      const std::uint32_t after_write = (kept_ >> n & 1) != 0 ? what_[k] : 0;
      end_page(fs_, frames_[k], node_, written ? after_write : what_[k] | page_dirt::alone);
      return 0;
    });
    count_ = 0;
    kept_ = 0;
    g_.sync();
  }
  // Releases all pages with their dirty flags unchanged.
  GPUFS_HD void give_back() {
    for_own(begin_, begin_ + count_, [&](std::uint32_t, std::uint32_t k) {
      end_page(fs_, frames_[k], node_, what_[k]);
      return 0;
    });
    count_ = 0;
    g_.sync();
  }

  // Pins a page and takes it for cleaning. Returns its dirty flags; 0 when it is clean or another
  // group is cleaning it, and then the caller holds nothing. Called by one thread.
  GPUFS_HD static std::uint32_t begin_page(const mount_ref& fs, std::uint32_t frame_number,
                                           const slot_key& key) {
    slot_header& header = frame_table(fs).header(frame_number);
    const bool there =
        slot_state::phase(header.state.pin()) == slot_phase::resident && header.key() == key;
    std::uint32_t what = 0;
    if (there && page_dirt(fs, frame_number).begin_cleaning(what)) return what;
    (void)header.state.unpin();
    return 0;
  }
  // Releases a page from begin_page(). `left`: flags that are still dirty; 0: none. Called by one
  // thread.
  GPUFS_HD static void end_page(const mount_ref& fs, std::uint32_t frame_number, std::uint32_t node,
                                std::uint32_t left) {
    page_dirt dirt(fs, frame_number);
    if (left == 0) dirt.end_cleaning(node);
    else dirt.fail_cleaning(node, left);
    (void)frame_table(fs).header(frame_number).state.unpin();
  }

 private:
  static constexpr std::uint32_t pages_max = 64;  // Bits of a word.
  // Pages that a member holds. On the CPU device one member holds all.
  static constexpr std::uint32_t of_member =
      Group::is_one_thread || !platform::is_gpu ? pages_max : 2;

  // One bit per page of the stretch. `alone`: dirty, but must not be written with others.
  struct dirty_bits {
    std::uint64_t dirty, alone, cleaning;
  };

  // Calls `act(page, place)` for the member's own pages in [begin, end) of the stretch. Returns a
  // bit per page, set where the result was not 0.
  template <class Act>
  GPUFS_HD std::uint64_t for_own(std::uint32_t begin, std::uint32_t end, const Act& act) {
    std::uint64_t bits = 0;
    GPUFS_NO_UNROLL
    for (std::uint32_t k = 0, n = g_.rank(); k < of_member && n < end; ++k, n += g_.size()) {
      if (n >= begin && act(n, k) != 0) bits |= std::uint64_t{1} << n;
    }
    return bits;
  }

  // Looks at the page's stretch without locks. The result is a hint: the index's guess may miss
  // some pages, but never the given one.
  GPUFS_HD dirty_bits look(std::uint32_t frame_number, const slot_key& key) {
    pages_ = stretch_pages();
    version_ = key.high;
    first_ = key.low & ~std::uint64_t{pages_ - 1};
    dirty_bits own{0, 0, 0};
    const frame_table frames(fs_);
    (void)for_own(0, pages_, [&](std::uint32_t n, std::uint32_t k) {
      const slot_key mine{version_, first_ + n};
      frames_[k] = mine == key ? frame_number : frames.index().guess(mine) - 1;
      if (frames_[k] == ~0u || frames.header(frames_[k]).key() != mine) return 0;
      const std::uint32_t flags = page_dirt(fs_, frames_[k]).flags();
      const std::uint64_t bit = std::uint64_t{1} << n;
      if ((flags & page_dirt::cleaning) != 0) own.cleaning |= bit;
      else if ((flags & page_dirt::dirty) != 0)
        ((flags & page_dirt::alone) != 0 ? own.alone : own.dirty) |= bit;
      return 0;
    });
    return {g_.sum(own.dirty), g_.sum(own.alone), g_.sum(own.cleaning)};
  }

  // Takes a page by itself, if it is `alone`.
  GPUFS_HD bool take_alone(const dirty_bits& seen, std::uint32_t wanted) {
    const std::uint64_t own = std::uint64_t{1} << wanted;
    if ((seen.alone & own) == 0) return false;
    take(own, wanted);
    return true;
  }
  // Takes page `wanted` of the stretch, and the pages of `candidates` next to it.
  GPUFS_HD void take(std::uint64_t candidates, std::uint32_t wanted) {
    const auto take_own = [&](std::uint32_t n, std::uint32_t k) {
      what_[k] = begin_page(fs_, frames_[k], {version_, first_ + n});
      return what_[k];
    };
    std::uint64_t taken = g_.sum(for_own(wanted, wanted + 1, take_own));
    if (taken == 0) return;
    narrow(candidates, wanted);
    taken |= g_.sum(for_own(begin_, begin_ + count_, [&](std::uint32_t n, std::uint32_t k) {
      return n == wanted ? 0 : take_own(n, k);
    }));
    // Other groups took some pages meanwhile: release the pages past the gaps.
    narrow(taken, wanted);
    (void)for_own(0, pages_, [&](std::uint32_t n, std::uint32_t k) {
      if ((taken >> n & 1) != 0 && (n < begin_ || n >= begin_ + count_))
        end_page(fs_, frames_[k], page_dirt(fs_, frames_[k]).node(), what_[k]);
      return 0;
    });
    const std::uint64_t partly = for_own(
        begin_, begin_ + count_,
        [&](std::uint32_t, std::uint32_t k) { return (what_[k] & page_dirt::whole) == 0 ? 1 : 0; });
    masked_ = !g_.all(partly == 0);
    const page front = at(0);
    node_ = page_dirt(fs_, front.frame).node();
  }
  // Sets the run to the consecutive bits around page `wanted`.
  GPUFS_HD void narrow(std::uint64_t bits, std::uint32_t wanted) {
    std::uint32_t begin = wanted, end = wanted + 1;
    while (begin > 0 && (bits >> (begin - 1) & 1) != 0) --begin;
    while (end < pages_ && (bits >> end & 1) != 0) ++end;
    begin_ = begin;
    count_ = end - begin;
  }

  const mount_ref& fs_;
  const Group g_;
  std::uint64_t version_ = 0;
  // First page of the stretch, in the file.
  std::uint64_t first_ = 0;
  // Pages of the stretch.
  std::uint32_t pages_ = 0;
  // First page of the run, in the stretch.
  std::uint32_t begin_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t node_ = 0;
  // A bit for each page of the stretch.
  std::uint64_t kept_ = 0;
  bool masked_ = false;
  bool contended_ = false;
  // Page n of the stretch is in member n % size, at place n / size.
  std::uint32_t frames_[of_member];
  std::uint32_t what_[of_member];
};

}  // namespace gpufs::detail
