// Litmus tests of the communication between device and host: replies and their bytes, requests and
// their bytes, withdrawals, pages of registered files, copies of the copy engine, and counters that
// the host reads while a kernel runs. Weakened variants break the order on purpose. Their errors
// are counted, to show that the two sides meet.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "litmus/exchange.hpp"
#include "support/temporary.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing::litmus {

static exchange_shape shape_of(std::uint32_t bytes, std::uint32_t rounds_of_gpu) {
  if (device() == device_kind::cuda) return {32, rounds_of_gpu, bytes};
#if defined(__SANITIZE_THREAD__)
  return {3, 100, bytes};
#else
  return {3, 400, bytes};
#endif
}

// For weakened variants: gives the other side time between two steps whose order is broken.
GPUFS_HD inline void dawdle([[maybe_unused]] std::uint32_t round) {
  if constexpr (platform::is_gpu) {
    for (int n = 0; n < 100; ++n) (void)platform::now_ns();
  } else if (round % 4 == 0) {
    platform::pause(1000);
  }
}

// For words that one side stores while the other may read them, because the order is broken on
// purpose.
static void store_racing(char* to, const std::vector<std::uint64_t>& words) {
  for (std::size_t i = 0; i < words.size(); ++i)
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(to) + i, words[i], __ATOMIC_RELAXED);
}
static bool are_equal_racing(const char* from, const std::vector<std::uint64_t>& words) {
  bool equal = true;
  for (std::size_t i = 0; i < words.size(); ++i)
    equal = equal && __atomic_load_n(reinterpret_cast<const std::uint64_t*>(from) + i,
                                     __ATOMIC_RELAXED) == words[i];
  return equal;
}
static bool are_equal(const char* from, const std::vector<std::uint64_t>& words) {
  return std::memcmp(from, words.data(), words.size() * 8) == 0;
}

template <template <bool> class Test>
static void test_exchange(const char* name, const exchange_shape& shape) {
  work_budget budget(2);
  exchange_result all{0, 0};
  exchange both(shape);
  while (budget.next()) {
    const exchange_result used = both.run(Test<false>{});
    all.rounds += used.rounds;
    all.wrong += used.wrong;
  }
  budget.covers("rounds", all.rounds);
  print_result(name, all, both.run(Test<true>{}));
  EXPECT_EQ(all.wrong, 0u);
  EXPECT_GT(all.rounds, 0u);
}

// ---- From the host: a reply, and the bytes in staging. In the other direction, the bell reports
// that they have been read.

template <bool weak>
struct bytes_with_a_reply {
  GPUFS_HD bool device_round(const exchange_side& side, const warp_group& g, std::uint32_t slot,
                             std::uint32_t round) const {
    if (!side.wait(g, slot, round)) return false;
    // Weakened: in half of the slots the bell comes before the bytes have been read, in the other
    // half the reply comes before them.
    const bool rings_early = weak && slot % 2 == 0;
    if (rings_early) {
      if (g.is_leader()) side.channel.bell(slot).store_relaxed(round);
      dawdle(round);
    }
    if constexpr (weak)
      copy_out_of_page(g, side.message(slot), side.channel.staging(slot), side.shape.bytes);
    else copy_from_host(g, side.message(slot), side.channel.staging(slot), side.shape.bytes);
    g.sync();
    const bool right = side.is_right(g, slot, round);
    if (!g.is_leader()) return true;
    side.counts->add(right);
    // Like a request that sends no bytes: afterwards the host may overwrite what was read.
    if (!rings_early) side.channel.bell(slot).store_after_reads(round);
    return true;
  }
  bool host_round(exchange_host& host, std::uint32_t slot, std::uint32_t round) const {
    if (host.channel.bell(slot).load_acquire() != round - 1) return false;
    const std::vector<std::uint64_t> words = host.message_of(slot, round);
    if (weak) {
      const bool answers_early = slot % 2 != 0;
      if (answers_early) {
        host.answer(slot, round);
        dawdle(round);
      }
      store_racing(host.channel.staging(slot), words);
      if (!answers_early) host.answer(slot, round);
    } else {
      std::memcpy(host.channel.staging(slot), words.data(), host.shape.bytes);
      host.answer(slot, round);
    }
    return true;
  }
};

TEST(LitmusHost, a_reply_comes_after_its_bytes_and_they_stay_until_the_next_bell) {
  test_exchange<bytes_with_a_reply>("reply and bytes", shape_of(1024, 3000));
}

// ---- To the host: bytes in staging, and the bell.

template <bool weak>
struct bytes_with_a_bell {
  GPUFS_HD bool device_round(const exchange_side& side, const warp_group& g, std::uint32_t slot,
                             std::uint32_t round) const {
    auto* const words = reinterpret_cast<std::uint64_t*>(side.message(slot));
    for (std::uint32_t i = g.rank(); i < side.shape.bytes / 8; i += g.size())
      words[i] = known_word(slot, round, i);
    g.sync();
    if (weak) {
      if (g.is_leader()) side.channel.bell(slot).store_relaxed(round);
      dawdle(round);
    }
    if constexpr (weak && !platform::is_gpu)
      copy_into_page(g, side.channel.staging(slot), side.message(slot), side.shape.bytes);
    else copy_to_host(g, side.channel.staging(slot), side.message(slot), side.shape.bytes);
    g.sync();
    if (!weak && g.is_leader()) side.channel.bell(slot).store_release(round);
    if (!side.wait(g, slot, round)) return false;
    if (g.is_leader()) side.counts->add(true);
    return true;
  }
  bool host_round(exchange_host& host, std::uint32_t slot, std::uint32_t round) const {
    if (host.channel.bell(slot).load_acquire() != round) return false;
    const std::vector<std::uint64_t> words = host.message_of(slot, round);
    const bool equal = weak ? are_equal_racing(host.channel.staging(slot), words)
                            : are_equal(host.channel.staging(slot), words);
    if (!equal) ++host.wrong;
    host.answer(slot, round);
    return true;
  }
};

TEST(LitmusHost, a_bell_comes_after_its_bytes) {
  test_exchange<bytes_with_a_bell>("bell and bytes", shape_of(1024, 3000));
}

// ---- Requests without order: each word has the number of its request. Weakened: the host ignores
// the numbers.

template <bool weak>
struct request_words {
  GPUFS_HD static request asked(std::uint32_t slot, std::uint32_t round) {
    const std::uint64_t word = known_word(slot, round, 0);
    return {request_code::read, word, static_cast<std::uint32_t>(word >> 40),
            known_word(slot, round, 1)};
  }
  GPUFS_HD bool device_round(const exchange_side& side, const warp_group& g, std::uint32_t slot,
                             std::uint32_t round) const {
    if (g.is_leader()) {
      if (weak) {
        side.channel.request(slot).words[0].store_relaxed(std::uint64_t{round} << 32);
        dawdle(round);
      }
      side.channel.request(slot).store(asked(slot, round), round);
      side.channel.bell(slot).store_after_reads(round);
    }
    if (!side.wait(g, slot, round)) return false;
    if (g.is_leader()) side.counts->add(true);
    return true;
  }
  bool host_round(exchange_host& host, std::uint32_t slot, std::uint32_t round) const {
    if (!weak && host.channel.bell(slot).load_acquire() != round) return false;
    request got{};
    const bool whole = host.channel.request(slot).load(round, got);
    // Weakened: takes all words as soon as one is new.
    if (weak) {
      if (host.channel.request(slot).words[0].load_relaxed() >> request_record::payload_bits !=
          round)
        return false;
    } else if (!whole) {
      return false;
    }
    const request expected = asked(slot, round);
    if (got.code != expected.code || got.handle != expected.handle ||
        got.length != expected.length || got.offset != expected.offset)
      ++host.wrong;
    host.answer(slot, round);
    return true;
  }
};

TEST(LitmusHost, a_request_whose_words_agree_is_whole) {
  test_exchange<request_words>("request without order", shape_of(1024, 3000));
}

// ---- Withdrawals: each side stores to its word, and then reads the other's.

template <bool weak>
struct withdrawal {
  GPUFS_HD bool device_round(const exchange_side& side, const warp_group& g, std::uint32_t slot,
                             std::uint32_t round) const {
    bool sees_claim = false;
    if (g.is_leader()) {
      side.channel.bell(slot).store_after_reads(round);
      // Waits up to the time that the host needs to see the bell, so that the two sides meet.
      const auto wait = static_cast<std::uint32_t>(known_word(slot, round, 0) % 256);
      for (std::uint32_t n = 0; n < wait; ++n) (void)platform::now_ns();
      if constexpr (weak) {
        side.channel.withdrawn(slot).store_relaxed(round);
        sees_claim = side.channel.reply(slot).claimed.load_relaxed() == round;
      } else {
        side.channel.withdrawn(slot).store_before_load(round);
        sees_claim = side.channel.reply(slot).claimed.load_after_store() == round;
      }
    }
    if (!side.wait(g, slot, round)) return false;
    if (!g.is_leader()) return true;
    const bool host_sees = reply_result(side.channel.reply(slot).word.load_relaxed()) != 0;
    side.counts->add(sees_claim || host_sees);
    return true;
  }
  bool host_round(exchange_host& host, std::uint32_t slot, std::uint32_t round) const {
    if (host.channel.bell(slot).load_acquire() != round) return false;
    bool sees_withdrawal = false;
    if (weak) {
      host.channel.reply(slot).claimed.store_relaxed(round);
      sees_withdrawal = host.channel.withdrawn(slot).load_relaxed() == round;
    } else {
      host.channel.reply(slot).claimed.store_before_load(round);
      sees_withdrawal = host.channel.withdrawn(slot).load_after_store() == round;
    }
    host.answer(slot, round, sees_withdrawal ? 1 : 0);
    return true;
  }
};

TEST(LitmusHost, of_a_claim_and_a_withdrawal_one_sees_the_other) {
  test_exchange<withdrawal>("withdrawal", shape_of(1024, 4000));
}

// ---- Words of 8 bytes are never torn.

template <bool weak>
struct whole_words {
  GPUFS_HD static void store(channel_word<std::uint64_t>& word, std::uint32_t half) {
    if constexpr (weak) {
      auto* const halves = reinterpret_cast<channel_word<std::uint32_t>*>(&word);
      halves[0].store_relaxed(half);
      // The host, which serves all slots, sleeps in one of 64 stores.
      dawdle(half % 64 == 0 ? 0 : 1);
      halves[1].store_relaxed(half);
    } else {
      word.store_relaxed(twice(half));
    }
  }
  static constexpr std::uint32_t stores = 32;  // in a round

  GPUFS_HD bool device_round(const exchange_side& side, const warp_group& g, std::uint32_t slot,
                             std::uint32_t round) const {
    bool right = true;
    if (g.is_leader()) {
      for (std::uint32_t k = 0; k < stores; ++k) {
        store(side.channel.request(slot).words[0], round * stores + k);
        right = right && is_whole(side.channel.reply(slot).version.load_relaxed());
      }
      side.channel.bell(slot).store_after_reads(round);
    }
    if (!side.wait(g, slot, round)) return false;
    if (g.is_leader()) side.counts->add(right);
    return true;
  }
  bool host_round(exchange_host& host, std::uint32_t slot, std::uint32_t round) const {
    for (std::uint32_t k = 0; k < stores; ++k) {
      store(host.channel.reply(slot).version, round * stores + k);
      if (!is_whole(host.channel.request(slot).words[0].load_relaxed())) ++host.wrong;
    }
    if (host.channel.bell(slot).load_acquire() != round) return false;
    host.answer(slot, round);
    return true;
  }
};

TEST(LitmusHost, words_of_eight_bytes_are_whole) {
  test_exchange<whole_words>("words of 8 bytes", shape_of(1024, 1500));
}

// ---- A registered file that is written later: by pwrite(2), and through another mapping.

template <bool weak>
struct later_writes {
  char* other_mapping;

  GPUFS_HD bool device_round(const exchange_side& side, const warp_group& g, std::uint32_t slot,
                             std::uint32_t round) const {
    if (!side.wait(g, slot, round)) return false;
    const std::uint64_t n =
        copy_from_extent(g, side.message(slot), side.mapped_message(slot), side.shape.bytes);
    g.sync();
    const bool right = side.is_right(g, slot, round) && n == side.shape.bytes;
    if (!g.is_leader()) return true;
    side.counts->add(right);
    side.channel.bell(slot).store_after_reads(round);
    return true;
  }
  bool host_round(exchange_host& host, std::uint32_t slot, std::uint32_t round) const {
    if (host.channel.bell(slot).load_acquire() != round - 1) return false;
    const std::vector<std::uint64_t> words = host.message_of(slot, round);
    if (weak) {
      host.answer(slot, round);
      dawdle(round);
    }
    const std::uint64_t at = std::uint64_t{slot} * host.shape.bytes;
    if (round % 2 == 0) std::memcpy(other_mapping + at, words.data(), host.shape.bytes);
    else if (pwrite(host.file, words.data(), host.shape.bytes, static_cast<off_t>(at)) !=
             host.shape.bytes)
      ++host.wrong;
    if (!weak) host.answer(slot, round);
    return true;
  }
};

TEST(LitmusHost, what_is_registered_shows_what_is_written_to_the_file_later) {
  const exchange_shape shape = shape_of(4096, 1000);
  exchange both(shape);
  if (const std::string obstacle = both.device().direct_obstacle(); !obstacle.empty())
    GTEST_SKIP() << obstacle;
  const temporary_folder folder;
  const std::size_t bytes = std::size_t{shape.slots} * shape.bytes;
  const std::string path = folder.write("file", std::string(bytes, '\0'));
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  void* const registered = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  void* const other = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(registered, MAP_FAILED);
  ASSERT_NE(other, MAP_FAILED);
  if (!both.use_file(file, static_cast<char*>(registered)))
    GTEST_SKIP() << "the driver does not register the mapping";
  work_budget budget(2);
  exchange_result all{0, 0};
  while (budget.next()) {
    const exchange_result used = both.run(later_writes<false>{static_cast<char*>(other)});
    all.rounds += used.rounds;
    all.wrong += used.wrong;
  }
  budget.covers("rounds", all.rounds);
  print_result("writes to a registered file", all,
               both.run(later_writes<true>{static_cast<char*>(other)}));
  both.forget_file();
  (void)munmap(other, bytes);
  (void)munmap(registered, bytes);
  (void)close(file);
  EXPECT_EQ(all.wrong, 0u);
  EXPECT_GT(all.rounds, 0u);
}

// ---- Copies of the copy engine, and the word that the device stores after each copy.

template <bool weak>
struct bulk_copies {
  GPUFS_HD bool device_round(const exchange_side& side, const warp_group& g, std::uint32_t slot,
                             std::uint32_t round) const {
    if (!side.wait(g, slot, round)) return false;
    // Ordinary loads, of addresses that were also loaded in the previous round.
    const bool right = side.is_right(g, slot, round);
    if (!g.is_leader()) return true;
    side.counts->add(right);
    side.channel.bell(slot).store_release(round);
    return true;
  }
  bool host_round(exchange_host& host, std::uint32_t slot, std::uint32_t round) const {
    if (host.channel.bell(slot).load_acquire() != round - 1) return false;
    const std::uint64_t at = std::uint64_t{slot} * host.shape.bytes;
    const std::vector<std::uint64_t> words = host.message_of(slot, round);
    std::memcpy(host.buffer.host + at, words.data(), host.shape.bytes);
    // Weakened: the host answers by itself, as soon as the copy has begun.
    char* const told =
        reinterpret_cast<char*>(&host.channel.reply(weak ? host.shape.slots : slot).word);
    const std::int64_t n = host.device.bulk_copy(
        slot, host.memory + at, reinterpret_cast<std::uint64_t>(host.buffer.device + at),
        host.shape.bytes, host.channel_memory.device + (told - host.channel_memory.host),
        make_reply_word(round, 0));
    if (n != -EINPROGRESS && n != host.shape.bytes) ++host.wrong;
    if (weak || n != -EINPROGRESS) host.answer(slot, round);
    return true;
  }
};

TEST(LitmusHost, a_word_stored_after_a_copy_comes_after_its_bytes) {
  exchange_shape shape = shape_of(65536, 400);
  if (device() == device_kind::cuda) shape.slots = 8;
  exchange both(shape);
  if (const std::string obstacle = both.device().bulk_obstacle(); !obstacle.empty())
    GTEST_SKIP() << obstacle;
  both.use_buffers();
  // The driver prepares its copies now, not while a kernel waits for them.
  for (unsigned lane = 0; lane < 2; ++lane)
    (void)both.device().bulk_copy(lane, both.memory(),
                                  reinterpret_cast<std::uint64_t>(both.buffer().device),
                                  shape.bytes, both.spare_word(), 0);
  both.synchronize();
  work_budget budget(2);
  exchange_result all{0, 0};
  while (budget.next()) {
    const exchange_result used = both.run(bulk_copies<false>{});
    all.rounds += used.rounds;
    all.wrong += used.wrong;
  }
  budget.covers("rounds", all.rounds);
  // On the CPU device a copy is synchronous.
  print_result("copies and the word after them", all, both.run(bulk_copies<true>{}));
  EXPECT_EQ(all.wrong, 0u);
  EXPECT_GT(all.rounds, 0u);
}

// ---- Counters that the host reads while a kernel counts.

template <bool weak>
struct count_while_read_kernel {
  atomic_word<std::uint64_t>* counters;
  std::uint32_t count;
  std::uint32_t additions;

  GPUFS_HD void operator()(const mount_ref&) const {
    const std::uint64_t me = thread_group::grid_rank();
    for (std::uint32_t n = 0; n < additions; ++n) {
      atomic_word<std::uint64_t>& counter = counters[(me + n) % count];
      if constexpr (weak) {
        auto* const halves = reinterpret_cast<atomic_word<std::uint32_t>*>(&counter);
        halves[0].add_relaxed(1);
        halves[1].add_relaxed(1);
      } else {
        counter.add_relaxed(twice(1));
      }
    }
  }
};

template <bool weak>
static exchange_result read_beside_a_kernel(work_budget* budget, std::uint64_t steps) {
  constexpr std::uint32_t count = 512;
  const bool gpu = device() == device_kind::cuda;
  mount m(base_options());
  const std::unique_ptr<gpufs::device> d = gpu ? make_cuda_device(0) : make_cpu_device(1);
  exchange_result result{0, 0};
  for (std::uint64_t n = 0; budget == nullptr ? n < steps : budget->next(); ++n) {
    const device_array<atomic_word<std::uint64_t>> counters(m, count);
    std::atomic<bool> over{false};
    std::vector<std::uint64_t> before(count), now(count);
    const auto look = [&] {
      d->snapshot(now.data(), reinterpret_cast<const std::uint64_t*>(counters.data()), count);
      bool right = true;
      for (std::uint32_t i = 0; i < count; ++i)
        right = right && is_whole(now[i]) && now[i] >= before[i];
      before = now;
      ++result.rounds;
      if (!right) ++result.wrong;
    };
    std::thread reader([&] {
      while (!over) look();
    });
    const launch_shape shape =
        gpu ? launch_shape{32, 128, 0, nullptr} : launch_shape{2, 1, 0, nullptr};
    try {
      launch(m, shape,
             count_while_read_kernel<weak>{counters.data(), count, gpu ? 20'000u : 200'000u});
      m.synchronize();
    } catch (...) {
      over = true;
      reader.join();
      throw;
    }
    over = true;
    reader.join();
    look();
  }
  return result;
}

TEST(LitmusHost, counters_read_beside_a_kernel_are_whole_and_never_go_back) {
  work_budget budget(2);
  const exchange_result used = read_beside_a_kernel<false>(&budget, 0);
  budget.covers("looks", used.rounds);
  print_result("counters beside a kernel", used, read_beside_a_kernel<true>(nullptr, 2));
  EXPECT_EQ(used.wrong, 0u);
  EXPECT_GT(used.rounds, 0u);
}

}  // namespace gpufs::testing::litmus
