/**
 * The thread of a client that ends and begins its turns on the GPU, as the daemon orders.
 *
 *     state     gate    what ends it
 *     on        open    the order `out`, or it is idle while others wait
 *     held      rounds  of a job: only the calls of a round pass (hold.hpp). The order ends it
 *     leaving   closed  no submission is held, the GPU is idle, the memory is out: then off.
 *                       If work does not end, the gate opens for a moment, because a thread at the
 *                       gate may be what the work waits for. The next try takes twice as long.
 *     off       closed  a thread waits at the gate, and the daemon gives room: entering
 *     entering  closed  the memory is in: then on
 *
 * Without a daemon a client that is off goes on by itself after `loss_patience`, as soon as the GPU
 * has room; with GDEV_ON_DAEMON_LOSS=stop it waits for a daemon.
 */
#pragma once

#include <chrono>

namespace gdev {

inline constexpr std::chrono::seconds loss_patience{2};

/** Starts the thread, unless it runs. Returns at once. */
void start_turn_service() noexcept;

/** Wakes the thread: something has changed. */
void wake_turn_service() noexcept;

/** In a forked child: there is no such thread. */
void forget_turns() noexcept;

}  // namespace gdev
