// A run: dirty pages of one file that follow each other, which a group has taken to write them back
// in one piece. Each member holds some of them, so that all are looked for, taken and let go at the
// same time.
//
// A run lies in one stretch, an aligned part of the file as large as the host is sent at once:
// groups that find pages of the same stretch try for the same page first, and one of them takes it
// all.
//
// When a run could not be written its pages are `alone`: each is a run of its own until it is
// written, so that one that cannot be does not keep the others, and all of them are not tried again
// for each.
#pragma once

#include "gpufs/cache/dirty.cuh"

namespace gpufs::detail {

// By one warp, or one thread. All calls are collective; none waits.
template <class Group>
class dirty_run {
 public:
  GPUFS_HD dirty_run(const mount_ref& fs, const Group& g) : fs_(fs), g_(g) {}

  // How many pages a stretch has, a power of two: not so many that a few of them are all of a small
  // cache.
  GPUFS_HD std::uint32_t stretch_pages() const {
    const std::uint64_t room = fs_.channel.layout.write_bytes_max() >> fs_.layout.page_shift;
    const std::uint64_t held = std::uint64_t{of_member} * g_.size(),
                        share = fs_.layout.frame_count / 8;
    std::uint64_t n = room < held ? room : held;
    n = n < share ? n : share;
    while ((n & (n - 1)) != 0) n &= n - 1;
    return n == 0 ? 1 : static_cast<std::uint32_t>(n);
  }

  // Takes a page, if it is dirty and no other group is at it, and as many dirty pages of its
  // stretch as are next to it.
  GPUFS_HD void take_around(std::uint32_t frame_number, const slot_key& key) {
    const dirty_bits seen = look(frame_number, key);
    const auto wanted = static_cast<std::uint32_t>(key.low - first_);
    if (!take_alone(seen, wanted)) take(seen.dirty | std::uint64_t{1} << wanted, wanted);
  }

  // Takes the longest run of dirty pages in the stretch that a page is in, if it has `least` pages
  // or the whole stretch. Nothing if another group is at it; at any page of the stretch, unless one
  // page is enough.
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
  // Whether take_longest() saw another group at the stretch.
  GPUFS_HD bool contended() const { return contended_; }
  // Of its first page in the file.
  GPUFS_HD std::uint64_t first_page() const { return first_ + begin_; }
  GPUFS_HD std::uint64_t version() const { return version_; }
  // Whether one of them is not dirty as a whole.
  GPUFS_HD bool masked() const { return masked_; }
  GPUFS_HD std::uint32_t node() const { return node_; }

  // The i-th page: its frame, and what is dirty of it.
  struct page {
    std::uint32_t frame;
    std::uint32_t what;
  };
  GPUFS_HD page at(std::uint32_t i) const {
    const std::uint32_t n = begin_ + i, k = n / g_.size(), rank = n % g_.size();
    return {g_.from(frames_[k], rank), g_.from(what_[k], rank)};
  }

  // Lets all go: clean, or as dirty as they were.
  GPUFS_HD void end(bool written) {
    for_own(begin_, begin_ + count_, [&](std::uint32_t, std::uint32_t k) {
      end_page(fs_, frames_[k], node_, written ? 0 : what_[k] | page_dirt::alone);
      return 0;
    });
    count_ = 0;
    g_.sync();
  }
  // Lets all go untouched.
  GPUFS_HD void give_back() {
    for_own(begin_, begin_ + count_, [&](std::uint32_t, std::uint32_t k) {
      end_page(fs_, frames_[k], node_, what_[k]);
      return 0;
    });
    count_ = 0;
    g_.sync();
  }

  // Takes a page for changes to what is dirty of it, which it returns; 0 when there is nothing, or
  // another group is at it: then nothing is held. By one thread.
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
  // `left`: what is dirty of it still, 0 for nothing. By one thread.
  GPUFS_HD static void end_page(const mount_ref& fs, std::uint32_t frame_number, std::uint32_t node,
                                std::uint32_t left) {
    page_dirt dirt(fs, frame_number);
    if (left == 0) dirt.end_cleaning(node);
    else dirt.fail_cleaning(node, left);
    (void)frame_table(fs).header(frame_number).state.unpin();
  }

 private:
  static constexpr std::uint32_t pages_max = 64;  // as a word has bits
  // Pages that a member holds; the CPU device's groups have one.
  static constexpr std::uint32_t of_member =
      Group::is_one_thread || !platform::is_gpu ? pages_max : 2;

  // A bit for each page of the stretch. `alone`: dirty too, but not to be written with others.
  struct dirty_bits {
    std::uint64_t dirty, alone, cleaning;
  };

  // What `act(page, place)` gives for the member's own pages of [begin, end) of the stretch, by
  // bits; of all members together.
  template <class Act>
  GPUFS_HD std::uint64_t for_own(std::uint32_t begin, std::uint32_t end, const Act& act) {
    std::uint64_t bits = 0;
    GPUFS_NO_UNROLL
    for (std::uint32_t k = 0, n = g_.rank(); k < of_member && n < end; ++k, n += g_.size()) {
      if (n >= begin && act(n, k) != 0) bits |= std::uint64_t{1} << n;
    }
    return bits;
  }

  // At a glance, as a hint: what is there of the stretch that a page is in. (A glance does not find
  // all pages, but that one it must.)
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

  // Takes a page by itself, if it is one that goes so.
  GPUFS_HD bool take_alone(const dirty_bits& seen, std::uint32_t wanted) {
    const std::uint64_t own = std::uint64_t{1} << wanted;
    if ((seen.alone & own) == 0) return false;
    take(own, wanted);
    return true;
  }
  // Takes the page `wanted` of the stretch, and those next to it that are in `candidates`.
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
    // Some went to others meanwhile: what is behind them is given back.
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
  // The run is what `bits` has around a page.
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
  std::uint64_t first_ = 0;  // of the stretch, in the file
  std::uint32_t pages_ = 0;  // of the stretch
  std::uint32_t begin_ = 0;  // of the run, in the stretch
  std::uint32_t count_ = 0;
  std::uint32_t node_ = 0;
  bool masked_ = false;
  bool contended_ = false;
  // Page n of the stretch is in member n % size, place n / size.
  std::uint32_t frames_[of_member];
  std::uint32_t what_[of_member];
};

}  // namespace gpufs::detail
