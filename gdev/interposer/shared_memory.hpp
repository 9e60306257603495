/** What this process has attached of the memory that is shared by keys (gdev/shared_memory.h). */
#pragma once

#include <cuda.h>

#include <cstdint>

#include "protocol/messages.hpp"

namespace gdev {

/** Detaches all that was attached in a context. The context may be gone. */
void detach_all(CUcontext context) noexcept;

/** Returns the bytes of all that is attached. */
[[nodiscard]] std::uint64_t attached_bytes() noexcept;

/** Of a client that comes back to a daemon: tells it what is attached. `ask` returns an errno. */
void attach_again(int (*ask)(message& asked) noexcept) noexcept;

/** In a forked child: nothing of the parent's is attached here. */
void forget_attachments() noexcept;

}  // namespace gdev
