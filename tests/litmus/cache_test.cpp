// Litmus tests of what cached pages and open files rely on. One side makes the same steps as hits
// and lookups, the other side those of evictions, loads, opens and closes. Each test has a weakened
// reader, whose errors are counted, to show that the two sides meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "litmus/counted_reads.hpp"
#include "support/device.hpp"
#include "support/schedule.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing::litmus {

// ---- Hits.

enum class reads_by {
  pins,             // pin_and_look(), and ordinary loads
  pins_for_stores,  // weakened: the same with a pin that does not acquire
  // Into shared memory by asynchronous copies. Then a relaxed store returns the pin.
  copies,
  glances,       // optimistic reads, without a pin
  half_a_glance  // weakened: the frame is not checked again
};

struct frames_shape {
  std::uint32_t frames, blocks, threads;
  std::uint32_t hits;   // for each reader
  std::uint32_t tries;  // limits of a reader's tries to get its hits, and of a frame's loads
};
static frames_shape shape_of_frames() {
  if (device() == device_kind::cuda) return {128, 264, 128, 2000, 100'000};
#if defined(__SANITIZE_THREAD__)
  return {1, 2, 1, 1000, 200'000};
#else
  return {1, 2, 1, 3000, 200'000};
#endif
}

// The first `frames` warps evict and load one frame each, as long as the other warps read.
template <reads_by how>
struct frames_kernel {
  read_counts* counts;
  frames_shape shape;
  std::uint64_t seed;

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group g = this_warp();
    const auto me = static_cast<std::uint32_t>(warp_group::grid_rank());
    if (me < shape.frames) {
      const auto readers = static_cast<std::uint32_t>(warp_group::grid_size()) - shape.frames;
      load_anew(fs, g, me, 0);
      for (std::uint32_t n = 1;
           n < shape.tries && g.broadcast(counts->is_read(readers) ? 1u : 0u) != 0; ++n)
        load_anew(fs, g, me, n);
      return;
    }
    std::uint32_t misses = 0;
    for (std::uint32_t n = 0, hits = 0; n < shape.tries && hits < shape.hits; ++n) {
      const auto frame_number =
          static_cast<std::uint32_t>(mix(seed + (std::uint64_t{me} << 32) + n) % shape.frames);
      const bool hit = how == reads_by::glances || how == reads_by::half_a_glance
                           ? read_at_a_glance(fs, g, frame_number, n)
                           : read_pinned(fs, g, frame_number, n);
      if (hit) ++hits;
      misses = hit ? 0 : misses + 1;
      if (misses % 64 == 63) platform::pause(40);
    }
    if (g.is_leader()) counts->ended.add_relaxed(1);
  }

 private:
  // On the CPU device, so that the other thread runs between two steps.
  GPUFS_HD static void wait_now_and_then([[maybe_unused]] std::uint32_t n) {
    if constexpr (!platform::is_gpu) {
      if (n % 256 == 0) platform::pause(40);
    }
  }
  // As a fault does (page_cache.cuh), except for the index.
  GPUFS_HD void load_anew(const mount_ref& fs, const warp_group& g, std::uint32_t frame_number,
                          std::uint32_t n) const {
    slot_header& header = detail::frame_table(fs).header(frame_number);
    const known_page page = known_page::number(seed + (std::uint64_t{frame_number} << 32) + n);
    std::uint32_t mine = 0;
    if (g.is_leader() &&
        (header.state.claim(slot_phase::resident) || header.state.claim(slot_phase::free))) {
      header.set_key(page.key);
      header.state.begin_load();
      mine = 1;
    }
    if (g.broadcast(mine) == 0) return;
    auto* const words = reinterpret_cast<std::uint64_t*>(fs.page(frame_number));
    for (std::uint32_t i = g.rank(); i < known_page::words; i += g.size()) words[i] = page.word(i);
    g.sync();
    if (!g.is_leader()) return;
    header.valid.store_relaxed(page.valid());
    header.state.publish();
    (void)header.state.unpin();
  }

  // As a hit does.
  GPUFS_HD bool read_pinned(const mount_ref& fs, const warp_group& g, std::uint32_t frame_number,
                            std::uint32_t n) const {
    slot_header& header = detail::frame_table(fs).header(frame_number);
    struct {
      slot_key key;
      std::uint32_t valid, there;
    } pin{};
    if (g.is_leader()) {
      pin.key = header.key();
      constexpr auto use =
          how == reads_by::pins_for_stores ? slot_header::use::stores : slot_header::use::loads;
      const slot_header::seen seen = header.template pin_and_look<use>();
      const bool there = slot_state::phase(seen.state) == slot_phase::resident &&
                         seen.key == pin.key && (seen.valid & slot_header::unknown) == 0;
      pin.there = there ? 1 : 0;
      pin.valid = seen.valid;
    }
    pin = g.broadcast(pin);
    if (pin.there != 0) {
      const known_page page{pin.key};
      wait_now_and_then(n);
      const char* from = fs.page(frame_number);
      if constexpr (how == reads_by::copies) {
        char* const to = block_group::scratch() + block_group::warp_rank() * known_page::words * 8;
        copy_from_frame(g, to, from, known_page::words * 8);
        g.sync();
        from = to;
      }
      const auto* const words = reinterpret_cast<const std::uint64_t*>(from);
      bool right = pin.valid == page.valid();
      for (std::uint32_t i = g.rank(); i < known_page::words; i += g.size())
        right = right && words[i] == page.word(i);
      g.sync();
      right = g.all(right);
      if (g.is_leader()) counts->add(right);
    }
    if (g.is_leader()) {
      if (pin.there != 0) header.state.unpin_copied();
      else (void)header.state.unpin();
    }
    return pin.there != 0;
  }

  // As a view does, each lane for itself. Returns whether all lanes have read.
  GPUFS_HD bool read_at_a_glance(const mount_ref& fs, const warp_group& g,
                                 std::uint32_t frame_number, std::uint32_t n) const {
    const bool has_read = glance(fs, g.rank(), frame_number, n);
    return g.all(has_read);
  }
  GPUFS_HD bool glance(const mount_ref& fs, std::uint32_t rank, std::uint32_t frame_number,
                       std::uint32_t n) const {
    const detail::frame_table frames(fs);
    const known_page page{frames.header(frame_number).key()};
    const detail::optimistic_read found = detail::look_at(frames, frame_number, page.key);
    if (!found.there) return false;
    wait_now_and_then(n);
    const std::uint32_t a = (rank + n) % known_page::words,
                        b = (rank * 7 + n * 5) % known_page::words;
    const char* const bytes = fs.page(frame_number);
    const auto first = detail::load_at_a_glance<std::uint64_t>(bytes + a * 8);
    const auto second = detail::load_at_a_glance<std::uint64_t>(bytes + b * 8);
    detail::wait_until_read(first ^ second);
    if (how == reads_by::glances && !detail::is_still_there(fs, found)) return false;
    counts->add(found.valid == page.valid() && first == page.word(a) && second == page.word(b));
    return true;
  }
};

template <reads_by how>
static read_counts read_frames(work_budget* budget, std::uint64_t steps) {
  const frames_shape shape = shape_of_frames();
  read_counts all{};
  for (std::uint64_t n = 0; budget == nullptr ? n < steps : budget->next(); ++n) {
    mount m(base_options());
    const device_array<read_counts> counts(m, 1);
    const frames_kernel<how> kernel{counts.data(), shape, budget == nullptr ? n : budget->seed()};
    const std::uint32_t warps = (shape.threads + 31) / 32,
                        loaders = (shape.frames + warps - 1) / warps;
    const std::size_t scratch = std::size_t{known_page::words} * 8 * warps;
    // First only the loaders run, so that there is something to read.
    launch(m, {loaders, shape.threads, scratch, nullptr}, kernel);
    launch(m, {shape.blocks, shape.threads, scratch, nullptr}, kernel);
    const read_counts got = counts.download()[0];
    all.reads.value += got.reads.value;
    all.wrong.value += got.wrong.value;
  }
  if (budget != nullptr) budget->covers("reads", all.reads.value);
  return all;
}

template <reads_by used, reads_by weak>
static void test_reads(const char* name) {
  work_budget budget(steps());
  const read_counts as_used = read_frames<used>(&budget, 0);
  print_counts(name, as_used, read_frames<weak>(nullptr, steps()));
  EXPECT_EQ(as_used.wrong.value, 0u) << budget.replay();
  EXPECT_GT(as_used.reads.value, 0u);
}

TEST(LitmusCache, a_pinned_page_has_the_bytes_and_the_length_of_its_key) {
  test_reads<reads_by::pins, reads_by::pins_for_stores>("hit by a pin");
}
TEST(LitmusCache, a_pin_given_back_after_a_copy_has_kept_the_page) {
  test_reads<reads_by::copies, reads_by::pins_for_stores>("hit by a copy into shared memory");
}
TEST(LitmusCache, a_glance_takes_no_word_of_another_page) {
  test_reads<reads_by::glances, reads_by::half_a_glance>("hit at a glance");
}

// ---- Lookups of descriptors.

struct records_shape {
  std::uint32_t slots, blocks, threads;
  std::uint32_t rounds;   // limits of the opens and closes of a record, and of lookups
  std::uint32_t lookups;  // successful lookups of each thread of the other blocks
};
static records_shape shape_of_records() {
  if (device() == device_kind::cuda) return {8, 72, 128, 100'000, 5000};
#if defined(__SANITIZE_THREAD__)
  return {1, 2, 1, 200'000, 1000};
#else
  return {1, 2, 1, 200'000, 1500};
#endif
}

// One thread of each of the first `slots` blocks opens and closes a record, as long as the threads
// of the other blocks look descriptors up, including old ones.
template <bool weak>
struct records_kernel {
  read_counts* counts;
  atomic_word<std::uint32_t>* descriptors;  // by record: the last descriptor that referred to it
  records_shape shape;
  std::uint64_t seed;

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const auto block = static_cast<std::uint32_t>(block_group::grid_rank());
    if (block < shape.slots) {
      const auto readers = static_cast<std::uint32_t>(block_group::grid_size()) - shape.slots;
      if (!block_group::is_leader()) return;
      for (std::uint32_t n = 0; n < shape.rounds && counts->is_read(readers); ++n)
        open_and_close(fs, block);
      return;
    }
    const std::uint64_t me = thread_group::grid_rank();
    std::uint32_t misses = 0;
    for (std::uint32_t n = 0, hits = 0; n < shape.rounds && hits < shape.lookups; ++n) {
      const bool hit =
          look_up(fs, static_cast<std::uint32_t>(mix(seed + (me << 32) + n) % shape.slots));
      if (hit) ++hits;
      misses = hit ? 0 : misses + 1;
      if (misses % 64 == 63) platform::pause(40);
    }
    this_block().sync();
    if (block_group::is_leader()) counts->ended.add_relaxed(1);
  }

 private:
  // As an opener and the last gclose do (file/open_files.cuh), except for the index and the host.
  GPUFS_HD void open_and_close(const mount_ref& fs, std::uint32_t slot) const {
    const detail::record_table records(fs);
    slot_header& header = records.header(slot);
    if (!header.state.claim(slot_phase::free)) return;
    const known_file file{slot, records.at(slot).generation() + 1};
    GPUFS_SCHEDULE_POINT("litmus.describe");
    records.describe(slot, file.version(), file.size());
    records.set_generation(slot, file.generation, file.handle(), access_read, 0);
    header.state.begin_load();
    header.state.publish();
    (void)header.state.unpin();
    // Release: pairs with the acquire in look_up(). A thread that looks a descriptor up has it from
    // the thread that opened the record.
    descriptors[slot].store_release(
        static_cast<std::uint32_t>(detail::make_descriptor(slot, file.generation)));
    GPUFS_SCHEDULE_POINT("litmus.close");
    if (!header.state.claim(slot_phase::resident)) return;
    records.set_generation(slot, file.generation + 1, 0, 0, 0);
    header.state.release();
  }
  // Returns whether the descriptor was valid.
  GPUFS_HD bool look_up(const mount_ref& fs, std::uint32_t slot) const {
    // A recent descriptor, which may be closed.
    const auto fd = static_cast<std::int32_t>(descriptors[slot].load_acquire());
    if constexpr (weak) {
      const file_facts& facts = fs.facts_of(slot);
      // The tag first, then the word.
      const std::uint64_t tag = facts.tag_handle.load_relaxed();
      GPUFS_SCHEDULE_POINT("litmus.look_up");
      const std::uint64_t version = facts.version.load_relaxed();
      const std::uint32_t generation = file_facts::tag_in(tag);
      if (detail::make_descriptor(slot, generation) != fd) return false;
      counts->add(version == known_file{slot, generation}.version());
    } else {
      const detail::found_file found = detail::look_up(fs, fd);
      if (found.error != 0) return false;
      const known_file file{slot, found.tag};
      counts->add(found.view.version == file.version() && found.view.size == file.size() &&
                  found.view.handle == file.handle() && found.view.access == access_read);
    }
    return true;
  }
};

template <bool weak>
static read_counts look_up_records(work_budget* budget, std::uint64_t steps) {
  const records_shape shape = shape_of_records();
  read_counts all{};
  for (std::uint64_t n = 0; budget == nullptr ? n < steps : budget->next(); ++n) {
    mount m(base_options());
    const random_delays delays(n);  // for the CPU device
    const device_array<read_counts> counts(m, 1);
    const device_array<atomic_word<std::uint32_t>> descriptors(m, shape.slots);
    launch(m, {shape.blocks, shape.threads, 0, nullptr},
           records_kernel<weak>{counts.data(), descriptors.data(), shape,
                                budget == nullptr ? n : budget->seed()});
    const read_counts got = counts.download()[0];
    all.reads.value += got.reads.value;
    all.wrong.value += got.wrong.value;
  }
  if (budget != nullptr) budget->covers("lookups", all.reads.value);
  return all;
}

TEST(LitmusCache, a_descriptor_never_leads_to_what_its_record_was_opened_for_later) {
  work_budget budget(steps());
  const read_counts as_used = look_up_records<false>(&budget, 0);
  print_counts("lookup of a descriptor", as_used, look_up_records<true>(nullptr, steps()));
  EXPECT_EQ(as_used.wrong.value, 0u) << budget.replay();
  EXPECT_GT(as_used.reads.value, 0u);
}

#if !defined(GPUFS_TESTS_ON_GPU)

// Looks up once a descriptor that was closed before.
struct late_lookup_kernel {
  std::int32_t fd;
  std::int32_t* error;

  GPUFS_HD void operator()(const mount_ref& fs) const { *error = detail::look_up(fs, fd).error; }
};

// A descriptor has 14 bits of the generation, so a closed descriptor equals that of the 8,192nd
// open after it. A lookup that is suspended for that long must not combine facts of the two opens.
TEST(LitmusCache, a_lookup_that_stands_still_takes_no_facts_of_two_opens) {
  for (const std::string point : {"tagged.load_word", "tagged.load"}) {
    for (int wanted = 0; wanted < 2; ++wanted) {  // the first word or the second
      mount m(base_options());
      const device_array<std::int32_t> error(m, 1);
      const mount_ref fs = m.ref();
      const detail::record_table records(fs);
      std::uint32_t generation = 0;
      const auto open_and_close = [&](bool stays) {
        records.describe(0, ++generation, 1);
        records.set_generation(0, generation, 7, access_read, 1);
        if (stays) return;
        records.set_generation(0, ++generation, 0, 0, 0);
      };
      open_and_close(false);
      int met = 0;
      const schedule_hook hook([&](const char* name) {
        if (name != point || met++ != wanted) return;
        for (std::uint32_t n = 1; n < (1u << limits::generation_bits) / 2; ++n)
          open_and_close(false);
        open_and_close(true);
      });
      launch(m, {1, 1, 0, nullptr},
             late_lookup_kernel{detail::make_descriptor(0, 1), error.data()});
      EXPECT_GT(met, wanted) << point;
      EXPECT_EQ(error.download()[0], -EBADF) << point << " " << wanted;
    }
  }
}

#endif

// ---- Bytes that are stored while they are copied out.

// The first warps store pages of one repeated byte, alternating between two values, as long as the
// other warps copy the pages out. Weakened: a copy is expected to have only one of the values.
template <bool weak>
struct racing_bytes_kernel {
  read_counts* counts;
  char* pages;  // a page for each writer, and the two pages that they store
  std::uint32_t places;
  std::uint32_t copies;  // of each reader
  std::uint32_t stores;  // limit for each writer
  std::uint64_t seed;

  static constexpr std::uint32_t bytes = 512;
  static constexpr unsigned char first = 0x55, second = 0xaa;

  GPUFS_HD void operator()(const mount_ref&) const {
    const warp_group g = this_warp();
    const auto me = static_cast<std::uint32_t>(warp_group::grid_rank());
    if (me < places) {
      const auto readers = static_cast<std::uint32_t>(warp_group::grid_size()) - places;
      for (std::uint32_t n = 0; n < stores && g.broadcast(counts->is_read(readers) ? 1u : 0u) != 0;
           ++n)
        copy_into_page(g, pages + me * bytes, pages + (places + n % 2) * bytes, bytes);
      return;
    }
    char* const copy = block_group::scratch() + block_group::warp_rank() * bytes;
    for (std::uint32_t n = 0; n < copies; ++n) {
      copy_out_of_page(g, copy, pages + mix(seed + (std::uint64_t{me} << 32) + n) % places * bytes,
                       bytes);
      g.sync();
      bool known = true, has_first = false, has_second = false;
      for (std::uint32_t i = g.rank(); i < bytes; i += g.size()) {
        const auto byte = static_cast<unsigned char>(copy[i]);
        has_first = has_first || byte == first;
        has_second = has_second || byte == second;
        known = known && (byte == first || byte == second);
      }
      known = g.all(known);
      const bool mixed = !g.all(!has_first) && !g.all(!has_second);
      if (g.is_leader()) counts->add(weak ? !mixed : known);
      g.sync();
      if constexpr (!platform::is_gpu) {
        if (n % 512 == 0) platform::pause(40);
      }
    }
    if (g.is_leader()) counts->ended.add_relaxed(1);
  }
};

template <bool weak>
static read_counts copy_racing_bytes(work_budget* budget, std::uint64_t rounds) {
  using kernel = racing_bytes_kernel<weak>;
  const bool gpu = device() == device_kind::cuda;
  const std::uint32_t places = gpu ? 32 : 1;
  mount m(base_options());
  read_counts all{};
  for (std::uint64_t n = 0; budget == nullptr ? n < rounds : budget->next(); ++n) {
    std::vector<char> content((places + 2) * kernel::bytes, static_cast<char>(kernel::first));
    std::fill(content.end() - kernel::bytes, content.end(), static_cast<char>(kernel::second));
    const device_array<char> pages(m, content);
    const device_array<read_counts> counts(m, 1);
    const launch_shape shape = gpu ? launch_shape{64, 128, 4 * kernel::bytes, nullptr}
                                   : launch_shape{2, 1, kernel::bytes, nullptr};
    launch(m, shape,
           kernel{counts.data(), pages.data(), places, 3000, 100'000u,
                  budget == nullptr ? n : budget->seed()});
    const read_counts got = counts.download()[0];
    all.reads.value += got.reads.value;
    all.wrong.value += got.wrong.value;
  }
  if (budget != nullptr) budget->covers("copies", all.reads.value);
  return all;
}

TEST(LitmusCache, a_byte_copied_beside_a_store_is_the_old_one_or_the_new_one) {
  work_budget budget(steps());
  const read_counts used = copy_racing_bytes<false>(&budget, 0);
  print_counts("bytes copied beside stores", used, copy_racing_bytes<true>(nullptr, steps()));
  EXPECT_EQ(used.wrong.value, 0u) << budget.replay();
  EXPECT_GT(used.reads.value, 0u);
}

}  // namespace gpufs::testing::litmus
