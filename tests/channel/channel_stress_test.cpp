// Clients and the real service: each request is served once and each answer reaches its own
// request, however the threads are delayed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t requests_per_client = 300;
#else
constexpr std::uint64_t requests_per_client = 1000;
#endif

// Words that say where in which file they lie.
std::string numbered_words(std::uint64_t file, std::uint64_t count) {
  std::string bytes(count * 8, '\0');
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t word = file << 32 | i;
    std::memcpy(bytes.data() + i * 8, &word, 8);
  }
  return bytes;
}

struct stress_shape {
  const char* name;
  unsigned clients;
  unsigned workers;
  std::uint32_t slots;
};
void PrintTo(const stress_shape& s, std::ostream* out) { *out << s.name; }

class channel_stress : public ::testing::TestWithParam<stress_shape> {};
INSTANTIATE_TEST_SUITE_P(, channel_stress,
                         ::testing::Values(stress_shape{"one_slot", 4, 4, 1},
                                           stress_shape{"fewer_slots_than_clients", 8, 4, 3},
                                           stress_shape{"many_slots", 8, 3, 32},
                                           stress_shape{"one_worker", 8, 1, 4}),
                         [](const auto& p) { return std::string(p.param.name); });

service_rig_options rig_of(const stress_shape& shape) {
  service_rig_options options;
  options.workers = shape.workers;
  options.slots = shape.slots;
  return options;
}

TEST_P(channel_stress, every_answer_belongs_to_its_request) {
  const auto io = std::make_shared<memory_backend>();
  for (std::uint64_t f = 0; f < 3; ++f) io->write("/" + std::to_string(f), numbered_words(f, 5000));
  service_rig rig(io, rig_of(GetParam()));
  std::uint64_t handles[3];
  for (std::uint64_t f = 0; f < 3; ++f) handles[f] = rig.open("/" + std::to_string(f)).handle;

  std::atomic<std::uint64_t> wrong{0};
  {
    const random_delays delays(11);
    std::vector<std::thread> clients;
    for (unsigned c = 0; c < GetParam().clients; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937_64 random(c);
        for (std::uint64_t i = 0; i < requests_per_client; ++i) {
          const std::uint64_t f = random() % 3, first = random() % 5000, count = 1 + random() % 64;
          const rig_reply r =
              rig.read(handles[f], first * 8, static_cast<std::uint32_t>(count * 8));
          const std::uint64_t expected = std::min<std::uint64_t>(count, 5000 - first);
          bool good = r.result == static_cast<std::int32_t>(expected * 8);
          for (std::uint64_t w = 0; good && w < expected; ++w) {
            std::uint64_t word = 0;
            std::memcpy(&word, r.bytes.data() + w * 8, 8);
            good = word == (f << 32 | (first + w));
          }
          if (!good) ++wrong;
        }
      });
    }
    for (std::thread& t : clients) t.join();
  }
  EXPECT_EQ(wrong, 0u);
  // A worker counts after it has answered.
  const std::uint64_t requests = 3 + GetParam().clients * requests_per_client;
  EXPECT_TRUE(eventually([&] { return rig.workers().served_count() >= requests; }));
  EXPECT_EQ(rig.workers().served_count(), requests);
}

TEST_P(channel_stress, every_request_is_served_once) {
  service_rig rig(std::make_shared<memory_backend>(), rig_of(GetParam()));
  // Per client: the numbers arrive in order, none is left out, none comes twice. Called one at a
  // time.
  std::vector<std::uint64_t> next(GetParam().clients, 0);
  std::uint64_t wrong = 0;
  const std::int32_t sink = rig.sinks().open([&](const char* bytes, std::size_t count) {
    std::uint64_t message[2];
    if (count != sizeof message) return EMSGSIZE;
    std::memcpy(message, bytes, sizeof message);
    if (next[message[0]]++ != message[1]) ++wrong;
    return 0;
  });
  std::atomic<std::uint64_t> failed{0};
  {
    const random_delays delays(12);
    std::vector<std::thread> clients;
    for (unsigned c = 0; c < GetParam().clients; ++c) {
      clients.emplace_back([&, c] {
        for (std::uint64_t i = 0; i < requests_per_client; ++i) {
          const std::uint64_t message[2] = {c, i};
          if (rig.send(sink, {reinterpret_cast<const char*>(message), sizeof message}).result != 0)
            ++failed;
        }
      });
    }
    for (std::thread& t : clients) t.join();
  }
  EXPECT_TRUE(rig.sinks().close(sink, deadline::after(60'000'000'000)));
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(wrong, 0u);
  for (const std::uint64_t n : next) EXPECT_EQ(n, requests_per_client);
}

// Clients that lose patience, while the backend is slow now and then: late answers land in nobody's
// request.
TEST_P(channel_stress, late_answers_reach_nobody_else) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/0", numbered_words(0, 5000));
  const auto slow = std::make_shared<fault_backend>(io, 3);
  service_rig rig(slow, rig_of(GetParam()));
  const std::uint64_t handle = rig.open("/0").handle;
  slow->add({.on = operation::read, .probability = 0.1, .delay = 8ms});

  std::atomic<std::uint64_t> wrong{0}, given_up{0}, answered{0};
  {
    const random_delays delays(13);
    std::vector<std::thread> clients;
    for (unsigned c = 0; c < GetParam().clients; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937_64 random(c);
        const auto start = std::chrono::steady_clock::now();
        const auto goes_on = [&] {
          const auto time = std::chrono::steady_clock::now() - start;
          return time < 400ms ||
                 (time < 60s &&
                  (given_up == 0 || answered == 0));  // on a busy machine both take longer
        };
        while (goes_on()) {
          channel_client client = rig.memory().client({2'000'000});
          const std::int32_t acquired = client.acquire();
          if (acquired < 0) continue;  // all are abandoned at the moment
          const auto slot = static_cast<std::uint32_t>(acquired);
          const std::uint64_t first = random() % 5000;
          client.post(slot, {request_code::read, handle, 8, first * 8});
          const channel_client::answer answer = client.wait(slot);
          if (answer.abandoned) {
            if (answer.result != -EIO) ++wrong;
            ++given_up;
            continue;
          }
          std::uint64_t word = 0;
          std::memcpy(&word, rig.memory().view().staging(slot), 8);
          if (answer.result != 8 || word != first) ++wrong;
          ++answered;
          client.release(slot);
        }
      });
    }
    for (std::thread& t : clients) t.join();
  }
  slow->clear();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(given_up, 0u);
  EXPECT_GT(answered, 0u);
  // Every slot comes back into use.
  for (std::uint32_t i = 0; i < GetParam().slots; ++i)
    EXPECT_EQ(rig.read(handle, 8 * i, 8).result, 8);
}

// A worker is held up in its scan while others serve a request and the next one in the same slot.
// When it goes on, it must see that what it read is old. (Reading the bell before `served_` it did
// not, and served an old bell again.)
TEST(channel_order, a_worker_that_was_held_up_serves_no_old_bell) {
  service_rig_options options;
  options.workers = 2;
  options.slots = 1;
  service_rig rig(std::make_shared<memory_backend>(), options);
  std::vector<std::string> received;
  std::mutex mutex;
  const std::int32_t sink = rig.sinks().open([&](const char* bytes, std::size_t count) {
    const std::lock_guard lock(mutex);
    received.emplace_back(bytes, count);
    return 0;
  });
  for (int round = 0; round < 20; ++round) {
    received.clear();
    std::atomic<int> held{0};
    std::atomic<bool> go_on{false};
    const schedule_hook hook([&](const char* name) {
      if (std::strcmp(name, "service.claim") != 0 || held.fetch_add(1) != 0) return;
      while (!go_on) std::this_thread::sleep_for(100us);
    });
    rig.workers().wake();
    while (held == 0) std::this_thread::yield();
    EXPECT_EQ(rig.send(sink, "one").result, 0);
    EXPECT_EQ(rig.send(sink, "two").result, 0);
    go_on = true;
    std::this_thread::sleep_for(2ms);
    EXPECT_EQ(rig.send(sink, "three").result, 0);
    const std::lock_guard lock(mutex);
    ASSERT_EQ(received, (std::vector<std::string>{"one", "two", "three"})) << "round " << round;
  }
}

}  // namespace
}  // namespace gpufs::testing
