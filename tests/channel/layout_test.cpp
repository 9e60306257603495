// Where things lie in the channel's memory.
#include <gtest/gtest.h>

#include <vector>

#include "support/channel_memory.hpp"

namespace gpufs::testing {
namespace {

static_assert(std::is_trivially_copyable_v<channel_view>, "it goes to kernels by value");
static_assert(std::is_trivially_copyable_v<channel_header> &&
                  std::is_trivially_copyable_v<request_record> &&
                  std::is_trivially_copyable_v<reply_record>,
              "they live in zeroed memory");
static_assert(sizeof(channel_word<std::uint32_t>) == 4 && sizeof(channel_word<std::uint64_t>) == 8,
              "words of the bus");
static_assert(static_cast<std::uint32_t>(service_phase::starting) == 0,
              "zeroed memory says that nobody serves yet");

// Where in the channel's memory something lies.
template <class T>
std::uint64_t at(const channel_view& v, const T* p) {
  return static_cast<std::uint64_t>(reinterpret_cast<const char*>(p) - v.base);
}

TEST(channel_layout, parts_follow_each_other_and_do_not_overlap) {
  for (const std::uint32_t slots : {1u, 2u, 15u, 16u, 512u, limits::channel_slots_max}) {
    for (std::uint32_t staging = limits::staging_bytes_min; staging <= limits::staging_bytes_max;
         staging *= 2) {
      const channel_layout l = channel_layout::make(slots, staging);
      EXPECT_GE(l.bells, sizeof(channel_header));
      EXPECT_GE(l.requests, l.bells + 4ull * slots);
      EXPECT_GE(l.replies, l.requests + sizeof(request_record) * slots);
      EXPECT_GE(l.staging, l.replies + sizeof(reply_record) * slots);
      EXPECT_EQ(l.total_bytes, l.staging + std::uint64_t{staging} * slots);
      EXPECT_EQ(l.staging % 4096, 0u);
    }
  }
}

TEST(channel_layout, what_host_and_device_write_is_in_different_lines) {
  for (const std::uint32_t slots : {1u, 3u, 33u, 512u}) {
    const channel_memory memory(slots, limits::staging_bytes_min);
    const channel_view v = memory.view();
    constexpr std::uint64_t line = 128;
    EXPECT_LT(at(v, &v.header()) / line, at(v, &v.bell(0)) / line);
    EXPECT_LT((at(v, &v.bell(slots - 1)) + 3) / line, at(v, &v.request(0)) / line);
    EXPECT_LT((at(v, &v.request(slots - 1)) + sizeof(request_record) - 1) / line,
              at(v, &v.reply(0)) / line);
    EXPECT_LT((at(v, &v.reply(slots - 1)) + sizeof(reply_record) - 1) / line,
              at(v, v.staging(0)) / line);
    EXPECT_EQ(at(v, &v.reply(0)) % line, 0u);
    EXPECT_EQ(at(v, &v.request(0)) % sizeof(request_record), 0u);
  }
}

TEST(channel_layout, each_slot_has_its_own_part) {
  const channel_memory memory(64, 32768);
  const channel_view v = memory.view();
  const channel_layout& l = v.layout;
  for (std::uint32_t slot = 0; slot < 64; ++slot) {
    EXPECT_EQ(at(v, &v.bell(slot)), l.bells + 4ull * slot);
    EXPECT_EQ(at(v, &v.request(slot)), l.requests + 32ull * slot);
    EXPECT_EQ(at(v, &v.reply(slot)), l.replies + 128ull * slot);
    EXPECT_EQ(at(v, v.staging(slot)), l.staging + 32768ull * slot);
  }
}

TEST(channel_layout, some_slots_have_more_room_for_writes) {
  constexpr std::uint32_t slots = 21, staging = 8192, wide = 65536;
  const channel_layout l = channel_layout::make(slots, staging, wide);
  EXPECT_EQ(l.write_bytes_max(), wide);
  // Every part of the memory behind the slots' records belongs to one slot at most.
  std::vector<bool> taken(l.total_bytes - l.staging);
  const channel_view v{nullptr, l};
  const auto take = [&](const char* from, std::uint64_t bytes) {
    const auto first = static_cast<std::uint64_t>(from - v.base);
    ASSERT_GE(first, l.staging);
    ASSERT_LE(first + bytes, l.total_bytes);
    for (std::uint64_t i = first - l.staging; i < first - l.staging + bytes; ++i) {
      ASSERT_FALSE(taken[i]) << i;
      taken[i] = true;
    }
  };
  unsigned wide_slots = 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    take(v.staging(slot), staging);
    EXPECT_EQ(l.write_bytes(slot), l.is_wide(slot) ? wide : staging);
    if (l.is_wide(slot)) take(v.write_staging(slot), wide), ++wide_slots;
    else EXPECT_EQ(v.write_staging(slot), v.staging(slot));
  }
  EXPECT_EQ(wide_slots, 3u);
  EXPECT_EQ(channel_layout::make(slots, staging, staging).write_bytes_max(), staging)
      << "no wide slots";
}

TEST(channel_layout, a_request_is_there_when_all_its_words_are) {
  request_record whole{};
  const request sent{request_code::read, 0xfedc'ba98'7654'3210ull, 0x3fffffe,
                     0x0000'8765'4321'0fedull};
  whole.store(sent, 0xffffffffu);
  request got{};
  ASSERT_TRUE(whole.load(0xffffffffu, got));
  EXPECT_EQ(got.code, sent.code);
  EXPECT_EQ(got.handle, sent.handle);
  EXPECT_EQ(got.length, sent.length);
  EXPECT_EQ(got.offset, sent.offset);
  EXPECT_FALSE(whole.load(0, got)) << "the next one";
  request_record next{};
  next.store(sent, 0);
  for (int missing = 0; missing < 4; ++missing) {
    request_record part = next;
    part.words[missing] = whole.words[missing];
    EXPECT_FALSE(part.load(0, got)) << missing;
  }
}

// A slot's words hold this request or the one before, whose number is one less.
TEST(channel_layout, a_request_is_told_from_the_one_before_at_every_number) {
  const request sent{request_code::read, 1, 2, 3};
  for (unsigned bit = 0; bit < 32; ++bit) {
    const std::uint32_t sequence = 1u << bit;
    request_record record{};
    request got{};
    record.store(sent, sequence - 1);
    EXPECT_TRUE(record.load(sequence - 1, got)) << bit;
    EXPECT_FALSE(record.load(sequence, got)) << bit;
    for (int stored = 0; stored < 4; ++stored) {
      request_record next{};
      next.store(sent, sequence);
      record.words[stored] = next.words[stored];
      EXPECT_EQ(record.load(sequence, got), stored == 3) << bit;
    }
  }
}

TEST(channel_layout, every_bit_of_a_request_arrives_and_changes_no_other) {
  std::vector<request> all{{static_cast<request_code>(0), 0, 0, 0}};
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << bit;
    all.push_back({static_cast<request_code>(0), one, 0, 0});
    all.push_back({static_cast<request_code>(0), 0, 0, one});
    if (one <= request_record::length_max)
      all.push_back({static_cast<request_code>(0), 0, static_cast<std::uint32_t>(one), 0});
    if (one < request_record::codes) all.push_back({static_cast<request_code>(one), 0, 0, 0});
  }
  for (const std::uint32_t sequence : {0u, 1u, 0x00ffffffu, 0xffffffffu, 0x5a5a5a5au}) {
    for (request r : all) {
      for (const bool inverted : {false, true}) {
        if (inverted)
          r = {static_cast<request_code>(static_cast<std::uint32_t>(r.code) ^
                                         (request_record::codes - 1)),
               ~r.handle, r.length ^ request_record::length_max, ~r.offset};
        request_record record{};
        record.store(r, sequence);
        request got{};
        ASSERT_TRUE(record.load(sequence, got));
        ASSERT_EQ(got.code, r.code);
        ASSERT_EQ(got.handle, r.handle);
        ASSERT_EQ(got.length, r.length);
        ASSERT_EQ(got.offset, r.offset);
      }
    }
  }
}

TEST(channel_layout, a_request_keeps_code_and_length_apart) {
  for (std::uint32_t code = 0; code < request_record::codes; ++code) {
    for (const std::uint32_t length :
         {0u, 1u, limits::bulk_bytes_max - 1, limits::bulk_bytes_max, limits::bulk_bytes_max + 1,
          limits::write_bytes_max | masked_flag, request_record::length_max}) {
      request_record record{};
      record.store({static_cast<request_code>(code), 7, length, 9}, 1);
      request got{};
      ASSERT_TRUE(record.load(1, got));
      EXPECT_EQ(static_cast<std::uint32_t>(got.code), code) << length;
      EXPECT_EQ(got.length, length) << code;
    }
  }
}

TEST(channel_layout, a_reply_word_keeps_sequence_and_result_apart) {
  for (const std::uint32_t sequence : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    for (const std::int32_t result : {0, 1, -1, -5, 0x7fffffff, -0x7fffffff - 1}) {
      const std::uint64_t word = make_reply_word(sequence, result);
      EXPECT_EQ(reply_sequence(word), sequence);
      EXPECT_EQ(reply_result(word), result);
    }
  }
}

}  // namespace
}  // namespace gpufs::testing
