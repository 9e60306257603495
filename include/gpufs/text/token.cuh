// Splits text in memory.
#pragma once

#include "gpufs/text/find.cuh"

namespace gpufs {

// Returns the next token of `rest`: bytes between delimiters, without any. `rest` then begins after
// it. A token of 0 bytes means that no token is left. Like strtok_r(3), but the text is not changed
// and needs no zero at its end, so many threads can read it at a time. Each thread calls it for
// itself. Does not wait.
GPUFS_HD inline text_span next_token(text_span& rest, const byte_set& delimiters) {
  const thread_group me;
  const auto skip = [&](bool inside) {
    const std::uint64_t found = find_of_set(me, rest, delimiters, inside);
    const text_span skipped{rest.data, found == not_found ? rest.bytes : found};
    rest = {rest.data + skipped.bytes, rest.bytes - skipped.bytes};
    return skipped;
  };
  skip(false);
  return skip(true);
}
GPUFS_HD inline text_span next_token(text_span& rest, const char* delimiters) {
  return next_token(rest, byte_set(delimiters));
}

}  // namespace gpufs
