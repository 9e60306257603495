/**
 * This process as a client of the daemon: which virtual GPU it uses, and its account of memory.
 *
 * GDEV_SOCKET names the daemon's socket, GDEV_VGPU the virtual GPU. Without the first the process
 * is no client, and nothing here does anything. A forked child is not its parent's client: it
 * becomes one of its own when it initializes CUDA.
 *
 * Thread-safe. A call waits for the daemon at most `answer_timeout`, twice where it connects again.
 */
#pragma once

#include <chrono>
#include <cstdint>

namespace gdev {

inline constexpr std::chrono::seconds answer_timeout{2};

/** Joins the virtual GPU. Returns 0, also if there is nothing to join, or an errno. */
[[nodiscard]] int join_vgpu() noexcept;

/** Tells whether this process has joined a virtual GPU. */
[[nodiscard]] bool has_joined() noexcept;

/**
 * Takes bytes of the virtual GPU's memory into use.
 *
 * Returns 0; ENOMEM: the limit; ENOTCONN: the grant does not suffice and the daemon does not
 * answer.
 */
[[nodiscard]] int use_memory(std::uint64_t bytes) noexcept;

/** Returns what use_memory() took. */
void free_memory(std::uint64_t bytes) noexcept;

struct memory_facts {
  std::uint64_t limit = 0;  // bytes
  std::uint64_t used = 0;   // by all clients of the virtual GPU
};

/** Asks for the virtual GPU's memory. Returns false if the daemon does not answer. */
[[nodiscard]] bool ask_memory(memory_facts& facts) noexcept;

}  // namespace gdev
