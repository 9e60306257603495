/**
 * Two threads change an account as a client and the daemon do, for half a second: account_race SEED
 *
 * Prints how often each did, and ends with 0 if never more was in use than granted, the daemon's
 * copy of the grant was never too low, and the client's sum is right at the end.
 */
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>

#include "protocol/account.hpp"

namespace {

gdev::account_word account;
std::atomic<bool> is_over;
std::atomic<std::uint64_t> faults;

void check(bool is_right) {
  if (!is_right) {
    faults.fetch_add(1);
  }
}

std::uint64_t be_client(std::uint64_t seed, std::uint64_t& times) {
  std::mt19937_64 chance(seed);
  std::deque<std::uint64_t> held;
  std::uint64_t used = 0;
  while (!is_over) {
    if (const std::uint64_t units = chance() % 100; chance() % 2 == 0 && account.use(units)) {
      held.push_back(units);
      used += units;
      ++times;
    } else if (!held.empty()) {
      account.free(held.front());
      used -= held.front();
      held.pop_front();
    }
    const gdev::account_state state = account.load();
    check(state.used == used && state.used <= state.granted);
  }
  return used;
}

std::uint64_t be_daemon(std::uint64_t seed) {
  std::mt19937_64 chance(seed);
  std::uint32_t granted = 0;
  std::uint64_t times = 0;
  while (!is_over) {
    const auto units = static_cast<std::uint32_t>(chance() % 1000);
    if (chance() % 2 == 0) {
      granted = account.take_back(units, granted, chance() % 2 == 0);
    } else if (granted + units < 5000) {
      granted += units;
      account.grant(granted, 0);
    }
    // Strict frees may have lowered the word's grant; nothing raises it past the daemon's copy.
    check(account.load().granted <= granted);
    ++times;
  }
  return times;
}

}  // namespace

int main(int /*count*/, char** arguments) {
  const std::uint64_t seed = std::strtoull(arguments[1], nullptr, 10);
  std::uint64_t taken = 0;
  std::uint64_t used = 0;
  std::uint64_t times = 0;
  std::thread client([&] { used = be_client(seed, taken); });
  std::thread daemon([&] { times = be_daemon(seed + 1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  is_over = true;
  client.join();
  daemon.join();
  check(account.load().used == used);
  std::printf("%llu %llu\n", static_cast<unsigned long long>(taken),
              static_cast<unsigned long long>(times));
  return faults == 0 && taken > 0 && times > 0 ? 0 : 1;
}
