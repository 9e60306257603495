// Taking text in memory apart.
#pragma once

#include "gpufs/text/find.cuh"

namespace gpufs {

// The next token of `rest`: what is between bytes of the set `delimiters` and has no such byte.
// `rest` then begins behind it. 0 bytes: there is none left. As strtok_r(3), but the text is not
// changed and needs no zero at its end, so that many can read it at a time. By single threads, each
// for itself; does not wait.
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
