// What the kernels of a search share, in memory of the device.
#pragma once

#include "device_parts.hpp"
#include "job/files.cuh"
#include "search/nearest.cuh"
#include "search/plan.hpp"

namespace gpufs::search {

// Zeros at the beginning.
struct progress {
  atomic_word<std::uint64_t>
      next_pair;  // of a chunk and a tile, in order: the next that a block takes
  atomic_word<std::uint64_t> first_looked_through;  // the first chunk's pairs that have been
  atomic_word<std::uint64_t> matched;               // queries that have a match
};

struct workspace {
  plan how;
  job::path_table paths;
  const vectors_place* files;  // places_of(), in the order of the paths
  job::failure failed;
  answers to;
  progress* done;
  float* numbers;  // the queries', one behind another
  float* squares;  // sums of each one's squares
  char* slices;    // the queries, packed
  std::size_t bytes;

  // In `memory` of zeros, which begins with the lists; null: only to see how many `bytes` it takes.
  workspace(const plan& of, int parts, job::path_table p = {}, const vectors_place* f = nullptr,
            job::failure word = {}, char* memory = nullptr)
      : how(of), paths(p), files(f), failed(word) {
    device_parts next(memory);
    to.lists = next.take<found>(how.queries * how.length);
    to.states = next.take<query_state>(how.queries);
    done = next.take<progress>(1);
    numbers = next.take<float>(how.queries * how.dimensions);
    squares = next.take<float>(how.queries);
    slices = next.take<char>(tile::panel::bytes(how.queries, how.dimensions, parts));
    bytes = next.bytes();
    to.matched = &done->matched;
    to.queries = how.queries;
    to.length = how.length;
    to.is_first = how.is_first;
    to.squared_threshold = how.squared_threshold;
  }
};

}  // namespace gpufs::search
