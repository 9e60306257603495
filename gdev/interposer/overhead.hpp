/**
 * What this process has on GPUs and no allocation holds: contexts, modules, local memory, pools.
 *
 * A thread asks NVML what the process uses. What is more than the account has on the GPUs is the
 * overhead, which counts for the virtual GPU. It is measured when contexts are made and end, soon
 * after modules are loaded, and from time to time while the program allocates or submits work.
 *
 * Where NVML does not know the process, what the GPU has in use before and after a context is made
 * counts, up to `difference_max`. Without NVML there is no overhead.
 *
 * NVML may hang: calls wait for a measurement at most `look_patience`, and not at all while an
 * earlier one is late.
 */
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "interposer/client.hpp"

namespace gdev {

inline constexpr std::chrono::seconds look_patience{1};
/** No context takes more; others may allocate while it is made. */
inline constexpr std::uint64_t difference_max = std::uint64_t{1} << 30;

/** The making of a context. */
class context_making {
 public:
  /** Before it is made on a device. */
  explicit context_making(CUdevice device) noexcept;
  context_making(const context_making&) = delete;
  context_making& operator=(const context_making&) = delete;
  ~context_making();

  /**
   * Counts a context that was made. Returns false: the limit has no room for it; a line on standard
   * error says so. The caller ends the context, and calls note_context_end() then.
   */
  [[nodiscard]] bool fits(CUcontext made) noexcept;

 private:
  bool is_watched_ = false;
  measured_overhead told_;               // before
  std::optional<std::uint64_t> in_use_;  // on the GPU, before
};

/** After a context has ended: its overhead no longer counts. */
void note_context_end(CUcontext ended) noexcept;

/** The overhead may have changed: it is measured soon. Waits for nothing. */
void look_at_overhead() noexcept;

/** The program uses the GPU: the thread goes on measuring, if it has paused. Cheap. */
void watch_overhead() noexcept;

/** In a forked child: there is no thread, and nothing was measured. */
void forget_overhead() noexcept;

}  // namespace gdev
