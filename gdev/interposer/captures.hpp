/**
 * Which streams are being captured: the streams in which captures began, and no others.
 *
 * A capture ends in the stream in which it began, or with that stream, or with its context. Streams
 * that have joined it may end before, and end no capture then. Thread-safe.
 */
#pragma once

#include <cuda.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "driver/function_table.hpp"

namespace gdev {

/** A stream: default ones have the same handle in all contexts, or in all threads. */
struct stream_key {
  CUstream handle = nullptr;
  CUcontext context = nullptr;  // of a default one
  std::uint64_t thread = 0;     // of a default one

  auto operator<=>(const stream_key&) const = default;
};

/** Returns a stream by the name that it has for both kinds of default streams. Id: what uses it. */
template <function_id Id>
[[nodiscard]] CUstream named(CUstream stream) noexcept {
  constexpr bool is_per_thread = std::string_view(functions[Id].name).ends_with("_ptsz");
  return stream == nullptr && is_per_thread ? CU_STREAM_PER_THREAD : stream;
}

/** Returns the key of a stream, for the calling thread. */
[[nodiscard]] stream_key key_of(CUstream stream) noexcept;

/** A capture: the stream in which it began, and the context of that. */
struct capture_origin {
  stream_key stream;
  CUcontext context = nullptr;
};

/** Returns where a capture of a stream would begin. The stream is not captured yet. */
[[nodiscard]] capture_origin origin_of(CUstream stream) noexcept;

/** A capture is about to begin. Returns false if one has begun there already. The caller holds a
 * submission. */
bool note_capture(const capture_origin& begun);
/** A capture ends. Returns it, or nothing if none began in the stream. */
std::optional<capture_origin> take_capture(const stream_key& stream);
/** The context ends, and its captures with it. */
void forget_captures(CUcontext ended);

/** In a forked child. */
void forget_captures() noexcept;

}  // namespace gdev
