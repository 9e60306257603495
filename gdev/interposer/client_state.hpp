/** What the parts of client.hpp share: client.cpp and client_memory.cpp. */
#pragma once

#include <mutex>

#include "interposer/client.hpp"
#include "interposer/connection.hpp"
#include "interposer/memory_in_use.hpp"
#include "protocol/account.hpp"
#include "protocol/messages.hpp"

namespace gdev::client_state {

// Order: asking, then state. Neither is held across a call of the driver.
extern std::mutex asking;  // guards the connection; held while the daemon answers

// Guards what follows. Held for moments, but while a client comes back to a daemon: then it says
// what is in use, and nothing may change until it has its new page.
extern std::mutex state;
extern client_page* page;
extern memory_in_use mine;
extern memory_facts known;  // as the daemon said last
extern bool was_refused;    // and said so
extern gpu_facts home;      // the GPU on which this process takes turns

/** Publishes what is not on the GPU on which turns are taken. `state` is held. */
void publish_elsewhere() noexcept;

// `asking` is held:

/**
 * Asks the daemon; connects again, once, if it is gone. Returns an errno.
 *
 * sent: a descriptor that goes with the message, or -1.
 */
int ask(message& said, int sent, daemon_connection::descriptors& received) noexcept;
/** The same, without descriptors. */
int ask(message& said) noexcept;
/** Tells whether a daemon that gave no answer may be about to be started anew. */
[[nodiscard]] bool may_come_back(int error) noexcept;
/** Tells whether it is still connected to the daemon that it knows. */
[[nodiscard]] bool is_hung_up() noexcept;

void close_all(const daemon_connection::descriptors& files) noexcept;

}  // namespace gdev::client_state
