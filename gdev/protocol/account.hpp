/**
 * A client's account of memory: one word in its page, which the daemon made and both sides change.
 *
 * The word says, in units of `account_unit`, what the daemon granted, and what of it is in use. So
 * a client allocates without asking, as long as the grant lasts, and the daemon takes back what is
 * not in use without asking. One compare-and-swap changes all of the word, so neither side can see
 * a state in which more is in use than granted.
 *
 * While a virtual GPU has more in use than its limit, because that was lowered, the grants of its
 * clients are `strict`: what a client frees leaves its grant too. Else it could use it again.
 *
 * The client can store anything in the word. The daemon keeps its own copy of the grant, and
 * believes the word only where it says less.
 */
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "protocol/counters.hpp"

namespace gdev {

inline constexpr std::uint64_t account_unit = 4096;
inline constexpr std::uint64_t account_units_max = 0x7FFFFFFF;

/**
 * Allocations move in chunks of at most so much. A chunk costs the driver what an allocation costs,
 * so small ones cost more. Those that programs make themselves may be larger.
 */
inline constexpr std::uint64_t chunk_bytes_max = std::uint64_t{256} << 20;
/** Clients take the host's memory, for what is off the GPU, in segments of this size. */
inline constexpr std::uint64_t host_segment_bytes = std::uint64_t{64} << 20;

/** Returns how many units contain these bytes. */
[[nodiscard]] constexpr std::uint64_t units_of(std::uint64_t bytes) noexcept {
  return bytes / account_unit + (bytes % account_unit != 0 ? 1 : 0);
}

/** How a client knows what it has on GPUs beside its allocations: contexts, modules. */
enum class overhead_source : std::uint8_t {
  unknown,     // it does not
  nvml,        // NVML lists the process, and what it uses
  difference,  // NVML does not; the GPU's memory before a context was made, and after that
};

struct account_state {
  std::uint32_t granted = 0;
  std::uint32_t used = 0;
  bool is_strict = false;
};

/** The word. All orders are relaxed: it orders nothing but itself. */
class account_word {
 public:
  [[nodiscard]] account_state load() const noexcept {
    return unpack(word_.load(std::memory_order_relaxed));
  }

  /** Client: takes units of the grant into use. Returns false if they are more than is left. */
  [[nodiscard]] bool use(std::uint64_t units) noexcept {
    return change([units](account_state& state) {
      if (units > std::uint64_t{state.granted} - std::min(state.granted, state.used)) {
        return false;
      }
      state.used += static_cast<std::uint32_t>(units);
      return true;
    });
  }

  /** Client: returns units that were in use to the grant, or, if they leave, to the daemon. */
  void free(std::uint64_t units, bool do_leave = false) noexcept {
    static_cast<void>(change([=](account_state& state) {
      state.used -= static_cast<std::uint32_t>(std::min<std::uint64_t>(units, state.used));
      if (do_leave) {
        state.granted -= static_cast<std::uint32_t>(
            std::min<std::uint64_t>(units, state.granted - std::min(state.granted, state.used)));
      }
      if (state.is_strict) {
        state.granted = std::min(state.granted, state.used);
      }
      return true;
    }));
  }

  /**
   * Daemon: sets the grant, and takes `used` more units into use for the client.
   *
   * If the client had to take them itself, they might be taken back before it does.
   */
  void grant(std::uint32_t granted, std::uint32_t used) noexcept {
    static_cast<void>(change([=](account_state& state) {
      state.granted = granted;
      state.used = std::min(state.used, granted - std::min(granted, used)) + used;
      state.is_strict = false;
      return true;
    }));
  }

  /**
   * Daemon: lowers the grant by `units`, but not below what is in use. Returns what it is now.
   *
   * granted: what the daemon knows to have granted; the word may say anything.
   */
  std::uint32_t take_back(std::uint64_t units, std::uint32_t granted, bool is_strict) noexcept {
    std::uint32_t now = 0;
    static_cast<void>(change([&](account_state& state) {
      const std::uint32_t believed = std::min(state.granted, granted);
      const std::uint32_t used = std::min(state.used, believed);
      now = believed - static_cast<std::uint32_t>(std::min<std::uint64_t>(units, believed - used));
      state.granted = now;
      state.is_strict = is_strict;
      return true;
    }));
    return now;
  }

  /**
   * Daemon: takes units out of what the client uses, and out of its grant. Returns false if it uses
   * less, or `granted` is less: what the daemon knows to have granted.
   */
  [[nodiscard]] bool hand_over(std::uint64_t units, std::uint32_t granted) noexcept {
    return change([=](account_state& state) {
      if (units > std::min({state.used, state.granted, granted})) {
        return false;
      }
      state.used -= static_cast<std::uint32_t>(units);
      state.granted -= static_cast<std::uint32_t>(units);
      return true;
    });
  }

  /** Daemon, before it shares the page: a client that was connected before has memory in use. */
  void start(account_state state) noexcept { word_.store(pack(state), std::memory_order_relaxed); }

 private:
  static account_state unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 32) & static_cast<std::uint32_t>(account_units_max),
            static_cast<std::uint32_t>(word), word >> 63 != 0};
  }
  static std::uint64_t pack(account_state state) noexcept {
    return std::uint64_t{state.is_strict} << 63 | std::uint64_t{state.granted} << 32 | state.used;
  }

  template <typename Change>
  bool change(Change&& how) noexcept {
    std::uint64_t old = word_.load(std::memory_order_relaxed);
    for (;;) {
      account_state state = unpack(old);
      if (!how(state)) {
        return false;
      }
      if (word_.compare_exchange_weak(old, pack(state), std::memory_order_relaxed)) {
        return true;
      }
    }
  }

  std::atomic<std::uint64_t> word_{0};
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "two processes share it");

/** What the daemon tells a client, as bits of client_page::order. */
inline constexpr std::uint32_t order_out = 1;        // be off the GPU; else: be on it
inline constexpr std::uint32_t order_contended = 2;  // others wait for memory: leave when idle
inline constexpr std::uint32_t order_report = 4;     // say `left`, also if it is off already
inline constexpr std::uint32_t order_prepare = 8;    // make what leaving will need of the host
inline constexpr std::uint32_t order_unfit = 16;     // with order_out: it does not fit any more
/** Without order_out: submit nothing but what client_page::hold allows, until the rest of the job
 * is as far. */
inline constexpr std::uint32_t order_hold = 32;

/** What a client that is held is told: a number, and how many calls it may submit. */
struct hold_round {
  static constexpr std::uint32_t calls_max = 0xFF;

  std::uint32_t number = 0;  // of 24 bits
  std::uint32_t calls = 0;

  [[nodiscard]] constexpr std::uint32_t packed() const noexcept { return number << 8 | calls; }
  [[nodiscard]] static constexpr hold_round unpacked(std::uint32_t word) noexcept {
    return {word >> 8, word & calls_max};
  }
};

/**
 * What a client and the daemon share: a page of memory of its own for each client.
 *
 * Each word but the account has one writer. Amounts are in account_unit. All orders are relaxed:
 * a word says all that its reader needs, and a signal or a message follows each change. Only
 * `answered` is stored with release and loaded with acquire: the client's counts come before it.
 */
struct client_page {
  std::uint32_t version = 0;
  std::atomic<std::uint32_t> has_files{0};  // the client writes it: it may make swap files
  account_word account;
  // The daemon writes:
  std::atomic<std::uint32_t> order{0};
  // Most that the client may have on the GPU while it enters; that it need not release when it
  // leaves, with its order to leave; and that it will not have to, as far as is known, before.
  std::atomic<std::uint32_t> room{0};
  std::atomic<std::uint32_t> hold{0};  // a hold_round
  // The client writes:
  std::atomic<std::uint32_t> swappable{0};  // of what is in use: what leaves the GPU with a turn
  std::atomic<std::uint32_t> resident{0};   // of that: what is on the GPU now
  std::atomic<std::uint32_t> elsewhere{0};  // of what is in use: what is on other GPUs
  // Counts: the client stores its own when the daemon asks for them, and then `answered`.
  std::atomic<std::uint32_t> asked{0};        // the daemon writes it
  std::atomic<std::uint32_t> known_names{0};  // so does it: unknown functions that it has names of
  std::atomic<std::uint32_t> answered{0};     // the client writes it: the last `asked` that it saw
  // The daemon writes it, and the client on a new page: turn_event::paused follows then.
  std::atomic<std::uint32_t> is_paused{0};
  std::array<std::atomic<std::uint64_t>, counters> counts{};  // by counter: client, then daemon
};

inline constexpr std::size_t client_page_bytes = 4096;
static_assert(sizeof(client_page) <= client_page_bytes);

}  // namespace gdev
