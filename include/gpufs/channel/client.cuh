// The device's side of the channel: take a slot, post a request, wait for the answer, release the
// slot. One thread makes each call (a group's leader).
//
// Progress: a waiter holds no latch. Every wait ends: with the answer, or with -EIO when the
// service is dead or after the request timeout. Only time in which the service lives counts. While
// its heartbeat stands still, the process is stopped (a signal, a debugger, a frozen container); a
// stop must cost time and no data. The end of the process ends its kernels.
#pragma once

#include "gpufs/base/standard.cuh"
#include "gpufs/base/statistics.cuh"
#include "gpufs/channel/layout.cuh"

#if !defined(__CUDA_ARCH__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace gpufs {

enum class slot_owner : std::uint32_t { free = 0, busy = 1, abandoned = 2 };

// In device memory: which group has the slot, and the number of its last request.
struct slot_record {
  atomic_word<std::uint32_t> owner;  // A slot_owner.
  // Changed only by the owner; ordered by the orders of `owner`.
  atomic_word<std::uint32_t> sequence;
};

struct channel_timeouts {
  std::uint64_t request_ns;
};

class channel_client {
 public:
  GPUFS_HD channel_client(const channel_view& view, slot_record* slots,
                          const channel_timeouts& timeouts, counter_set* counters)
      : view_(view), slots_(slots), timeouts_(timeouts), counters_(counters) {}

  // Takes a slot. Returns its number, or -EIO after a timeout. `wide`: takes a wide slot, if the
  // channel has any. Waits while all slots are taken; each holder is bounded by the same timeouts.
  [[nodiscard]] GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t acquire(bool wide = false) {
    deadline waiting = begin_wait();
    slot_walk at = begin_walk(waiting.start, wide);
    for (std::uint32_t attempt = 0;; ++attempt) {
      if (const std::int32_t slot = take_some(at); slot >= 0) return slot;
      if (attempt % looks_every == looks_every - 1 && timed_out(at.slot, waiting)) break;
      platform::pause(attempt, longest_pause_ns);
    }
    counters_->add(counter::rpc_failures);
    return -EIO;
  }

  // As acquire(), but does not wait: checks a few slots, and returns -EAGAIN if none is free.
  [[nodiscard]] GPUFS_HD std::int32_t try_acquire(bool wide = false) {
    slot_walk at = begin_walk(platform::now_ns(), wide);
    return take_some(at);
  }

  // Posts a request in a slot that the caller owns. The group's barrier orders its writes to
  // staging before this call.
  GPUFS_HD GPUFS_OUT_OF_LINE void post(std::uint32_t slot, const request& r) {
    const std::uint32_t sequence = slots_[slot].sequence.load_relaxed() + 1;
    slots_[slot].sequence.store_relaxed(sequence);
    if (sequence % renewal_period == 0) renew_withdrawn(slot, sequence);
    view_.request(slot).store(r, sequence);
    counters_->add(counter::rpcs);
    // Release, system scope: pairs with the worker's acquire of the bell. Without it the worker
    // could see the bell before the staging bytes. For other requests the host may write to
    // staging, so the last owner's reads must come before the bell.
    if (r.sends_staging()) view_.bell(slot).store_release(sequence);
    else view_.bell(slot).store_after_reads(sequence);
#if !defined(__CUDA_ARCH__)
    wake_service(duty_of(r.code));
#endif
  }

  // The number of the last request that the caller posted in its slot; for is_answered(). Called
  // before the slot is released or abandoned.
  [[nodiscard]] GPUFS_HD std::uint32_t posted(std::uint32_t slot) const {
    return slots_[slot].sequence.load_relaxed();
  }
  // Whether a request was answered. Also valid after another group has taken the slot.
  [[nodiscard]] GPUFS_HD bool is_answered(std::uint32_t slot, std::uint32_t sequence) const {
    // Acquire: pairs with the release of the answer. The caller sees what the host did for the
    // request.
    const std::uint32_t answered = reply_sequence(view_.reply(slot).word.load_acquire());
    return static_cast<std::int32_t>(answered - sequence) >= 0;
  }

  // Waits for the answer and returns its result. Without an answer in time: -EIO. For bulk
  // requests: -EAGAIN when the host reports that the answer may take long (`stalled`). In both
  // cases the slot is abandoned and the caller must not touch it again. With `keep` the caller
  // abandons the slot itself, after it has read what it needs from it. `begun`: the request changes
  // files and may still take effect at any later time; otherwise it never does.
  struct answer {
    std::int32_t result;
    bool abandoned;
    bool begun;
  };
  [[nodiscard]] GPUFS_HD GPUFS_OUT_OF_LINE answer wait(std::uint32_t slot, bool keep = false,
                                                       bool is_bulk = false) {
    const std::uint32_t sequence = slots_[slot].sequence.load_relaxed();
    deadline waiting = begin_wait();
    for (std::uint32_t attempt = 0;; ++attempt) {
      // Checked before the reply word: a service that answers and then dies has answered.
      const bool looks = attempt % looks_every == looks_every - 1;
      // Relaxed: a hint to load the pages in another way; it orders nothing.
      const bool stalled = looks && is_bulk && view_.reply(slot).stalled.load_relaxed() == sequence;
      const bool give_up = stalled || (looks && timed_out(slot, waiting));
      const std::uint64_t word = view_.reply(slot).word.load_for_wait();
      if (reply_sequence(word) == sequence) {
        // Acquire: pairs with the worker's release of the reply word. Staging and the rest of the
        // reply are read after it.
        view_.reply(slot).word.end_wait();
        counters_->add(counter::rpc_wait_ns, platform::elapsed_ns(waiting.start));
        return {reply_result(word), false, false};
      }
      if (give_up) {
        const bool begun = withdraw(slot, sequence);
        if (!keep) abandon(slot);
        if (stalled) return {-EAGAIN, true, begun};
        counters_->add(counter::rpc_failures);
        return {-EIO, true, begun};
      }
      GPUFS_SCHEDULE_POINT("client.wait");
      platform::pause(attempt, longest_pause_ns);
    }
  }

  // Posts a request in a slot that the caller owns, waits for the answer, and releases the slot.
  // For requests of which only the result matters. Returns the result, or -EIO without an answer.
  [[nodiscard]] GPUFS_HD answer ask(std::uint32_t slot, const request& r) {
    post(slot, r);
    const answer a = wait(slot);
    if (!a.abandoned) release(slot);
    return a;
  }
  // As above, in any slot, for a request without bytes.
  [[nodiscard]] GPUFS_HD answer ask(const request& r) {
    const std::int32_t acquired = acquire();
    return acquired < 0 ? answer{acquired, true, false}
                        : ask(static_cast<std::uint32_t>(acquired), r);
  }

  // Whether a write to this node (its node_name()), or a truncation of it, is posted and not
  // answered. Its caller may be waiting, or have given up. For a truncation only some bits of the
  // name are compared, so another node's may match.
  [[nodiscard]] GPUFS_HD GPUFS_OUT_OF_LINE bool has_unanswered_write(
      std::uint64_t node_name) const {
    for (std::uint32_t slot = 0; slot < view_.layout.slot_count; ++slot) {
      // Acquire: pairs with the release of the caller that gave up. The number read next is that of
      // its request.
      if (slots_[slot].owner.load_acquire() == static_cast<std::uint32_t>(slot_owner::free))
        continue;
      const std::uint32_t sequence = slots_[slot].sequence.load_relaxed();
      if (reply_sequence(view_.reply(slot).word.load_acquire()) == sequence) continue;
      request last{};
      // The request's words have not all arrived: it is being posted now. It is not the one asked
      // for, because a slot with an unanswered request takes no new one.
      if (!view_.request(slot).load(sequence, last)) continue;
      if (last.code == request_code::write && last.handle == node_name) return true;
      if (last.code == request_code::truncate && last.length == truncated_node(node_name))
        return true;
    }
    return false;
  }
  // As has_unanswered_write(), but first waits until there is none, for up to the request timeout.
  [[nodiscard]] GPUFS_HD GPUFS_OUT_OF_LINE bool has_unanswered_write_for_long(
      std::uint64_t node_name) const {
    deadline waiting = begin_wait();
    for (std::uint32_t attempt = 0; has_unanswered_write(node_name); ++attempt) {
      if (timed_out(0, waiting)) return true;
      platform::pause(attempt, longest_pause_ns);
    }
    return false;
  }

  // State of a wait: when it began, when the waiter last saw a new heartbeat, and for how long the
  // service has lived since the begin.
  struct deadline {
    std::uint64_t start, heard, lived;
    std::uint32_t heartbeat;
  };
  GPUFS_HD static deadline begin_wait() {
    const std::uint64_t now = platform::now_ns();
    return {now, now, 0, 0};
  }
  // The most time that one heartbeat counts for. The service's heartbeat changes every 50 ms; a
  // longer silence was a stop.
  static constexpr std::uint64_t heartbeat_ns_max = 100'000'000;
  // For how long the service has lived during the wait; all ones when it is dead. Reads one slot's
  // signs of life in host memory. Callers repeat it: silence between two calls counts as a stop.
  GPUFS_HD std::uint64_t lived_ns(std::uint32_t slot, deadline& waiting) const {
    const reply_record& reply = view_.reply(slot);
    const bool dead =
        reply.service.load_relaxed() != static_cast<std::uint32_t>(service_phase::running);
    const std::uint32_t beat = reply.heartbeat.load_relaxed();
    const std::uint64_t now = platform::now_ns();
    if (beat != waiting.heartbeat) {
      const std::uint64_t since = platform::duration_ns(waiting.heard, now);
      waiting.lived += since < heartbeat_ns_max ? since : heartbeat_ns_max;
      waiting.heartbeat = beat;
      waiting.heard = now;
    }
    return dead ? ~std::uint64_t{0} : waiting.lived;
  }
  // Whether to give up: the service is dead, or has lived for longer than a request may take.
  GPUFS_HD bool timed_out(std::uint32_t slot, deadline& waiting) const {
    return lived_ns(slot, waiting) > timeouts_.request_ns;
  }

  // Whether the service is dead. All callers read one slot's copy, so once one caller has seen it,
  // it stays so for all. A late worker may still answer a request that is posted afterwards.
  GPUFS_HD bool is_dead() const {
    return view_.reply(0).service.load_relaxed() !=
           static_cast<std::uint32_t>(service_phase::running);
  }

  // Release: pairs with the acquire in try_take(). The next owner's writes to staging come after
  // this owner's reads.
  GPUFS_HD void release(std::uint32_t slot) {
    slots_[slot].owner.store_release(static_cast<std::uint32_t>(slot_owner::free));
  }

  // The caller does not wait for the answer. The slot can be taken again once the answer has come.
  GPUFS_HD void abandon(std::uint32_t slot) {
    slots_[slot].owner.store_release(static_cast<std::uint32_t>(slot_owner::abandoned));
  }

 private:
  // Withdraws a request that got no answer in time. Returns whether it may still take effect. If
  // the host has opened a file for it, posts the close in the same slot.
  [[nodiscard]] GPUFS_HD GPUFS_OUT_OF_LINE bool withdraw(std::uint32_t slot,
                                                         std::uint32_t sequence) {
    request last{};
    (void)view_.request(slot).load(sequence, last);
    if (!last.changes_files() && !last.opens()) return false;
    // Pairs with service::begin(), and for an open with service::close_withdrawn() too.
    view_.withdrawn(slot).store_before_load(sequence);
    GPUFS_SCHEDULE_POINT("client.withdraw");
    const bool begun =
        last.changes_files() && view_.reply(slot).claimed.load_after_store() == sequence;
    if (!last.opens()) return begun;
    const std::uint64_t word = view_.reply(slot).word.load_after_store();
    if (reply_sequence(word) != sequence || reply_result(word) < 0) return begun;
    // Acquire: pairs with the worker's release of the reply word. The handle is read after it.
    view_.reply(slot).word.end_wait();
    post(slot, {request_code::close_written, view_.reply(slot).handle.load_relaxed(), 0, 0});
    return begun;
  }

  // In requests of one slot.
  static constexpr std::uint32_t renewal_period = 1u << 31;
  static constexpr std::uint32_t withdrawn_age = 1u << 30;

  // Numbers wrap. Replaces an old number in `withdrawn` before a new request gets the same number.
  // The replacement is the number of a request for which no worker reads `withdrawn` any more. The
  // slot's owner calls this every `renewal_period` requests, so no new request gets that number
  // either, even if the store reaches the host up to 2^30 requests late. A younger number stays:
  // the worker that answered its request may not have read it yet (service::close_withdrawn()).
  //
  // `claimed` and `stalled` of the reply need no renewal. If an old number there equals a new one,
  // the caller only believes that its request has begun, or loads its pages in another way.
  GPUFS_HD void renew_withdrawn(std::uint32_t slot, std::uint32_t sequence) const {
    channel_word<std::uint32_t>& withdrawn = view_.withdrawn(slot);
    if (sequence - withdrawn.load_relaxed() > withdrawn_age)
      withdrawn.store_relaxed(sequence - withdrawn_age);
  }

  static constexpr std::uint32_t longest_pause_ns = 16384;

  static constexpr std::uint32_t looks_every = 32;    // Attempts.
  static constexpr std::uint32_t looks_at_once = 16;  // Slots.

  // A walk over all slots, or all wide ones, from a pseudo-random start.
  struct slot_walk {
    std::uint32_t slot, step;
  };
  GPUFS_HD slot_walk begin_walk(std::uint64_t now, bool wide) const {
    const std::uint32_t step = wide && view_.layout.wide_bytes != 0 ? view_.layout.wide_step : 1;
    return {static_cast<std::uint32_t>(mix_start(now) % view_.layout.slot_count) & ~(step - 1),
            step};
  }
  // Takes the first free slot of the next few, or returns -EAGAIN.
  GPUFS_HD std::int32_t take_some(slot_walk& at) {
    GPUFS_NO_UNROLL
    for (std::uint32_t i = 0; i < looks_at_once; ++i) {
      if (try_take(at.slot)) return static_cast<std::int32_t>(at.slot);
      at.slot = at.slot + at.step >= view_.layout.slot_count ? 0 : at.slot + at.step;
    }
    return -EAGAIN;
  }

  GPUFS_HD static std::uint64_t mix_start(std::uint64_t now) {
    std::uint64_t x = now * 0x9e3779b97f4a7c15ull + platform::processor() * 0xc2b2ae3d27d4eb4full;
    return x ^ (x >> 29);
  }

  [[nodiscard]] GPUFS_HD bool try_take(std::uint32_t slot) {
    slot_record& record = slots_[slot];
    std::uint32_t seen = record.owner.load_relaxed();
    if (seen == static_cast<std::uint32_t>(slot_owner::busy)) return false;
    // Acquire on success: pairs with the release that freed the slot. Its sequence is then the last
    // one posted.
    if (!record.owner.compare_exchange_acquire(seen, static_cast<std::uint32_t>(slot_owner::busy)))
      return false;
    if (seen == static_cast<std::uint32_t>(slot_owner::free)) return true;
    if (reply_sequence(view_.reply(slot).word.load_acquire()) == record.sequence.load_relaxed())
      return true;
    // The answer is still to come, and would overwrite a new owner's staging.
    abandon(slot);
    return false;
  }

#if !defined(__CUDA_ARCH__)
  void wake_service(service_duty duty) {
    channel_header::sleep_words& words = view_.header().sleep_of(duty);
    // Sequentially consistent: pairs with the service thread that raises `sleepers` and then checks
    // the bells again. Either that thread sees this bell, or this thread sees that it sleeps.
    __atomic_fetch_add(&words.wake, 1u, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&words.sleepers, __ATOMIC_SEQ_CST) != 0) {
      syscall(SYS_futex, &words.wake, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
  }
#endif

  channel_view view_;
  slot_record* slots_;
  channel_timeouts timeouts_;
  counter_set* counters_;
};

}  // namespace gpufs
