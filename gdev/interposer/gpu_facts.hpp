/** What is free on a GPU, as its driver says it, and as it is. */
#pragma once

#include <cstdint>

#include "interposer/client.hpp"

namespace gdev {

/** Returns the GPU of the current context, or number 0 if there is none. */
[[nodiscard]] gpu_facts look_at_gpu() noexcept;

/**
 * What the driver has refused to give for chunks, while one request for them is tried again.
 *
 * A driver may say that memory is free, and give none of it. What it refuses a second time in a row
 * though so much is free counts as in use, for look_at_gpu() in this thread, until this object is
 * gone: else there would be room for ever that is not there. The first time others may just have
 * freed it.
 */
class refused_chunks {
 public:
  refused_chunks() noexcept;
  ~refused_chunks();
  refused_chunks(const refused_chunks&) = delete;
  refused_chunks& operator=(const refused_chunks&) = delete;

  /** As look_at_gpu(), after the driver has refused so many bytes. */
  [[nodiscard]] gpu_facts look(std::uint64_t refused) noexcept;
  /** The next refusal is the first one in a row. */
  void begin_again() noexcept { refusals_ = 0; }

 private:
  unsigned refusals_ = 0;
};

}  // namespace gdev
