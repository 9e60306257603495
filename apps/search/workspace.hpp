// Device memory that the kernels of a search share.
#pragma once

#include "common/device_parts.hpp"
#include "job/files.cuh"
#include "search/nearest.cuh"
#include "search/plan.hpp"

namespace gpufs::search {

// Zero at the beginning.
struct progress {
  atomic_word<std::uint64_t>
      next_pair;  // Pairs of a chunk and a tile, in order: the next one for a block to take.
  atomic_word<std::uint64_t> first_looked_through;  // pairs of the first chunk that are done
  atomic_word<std::uint64_t> matched;               // queries that have a match
};

struct workspace {
  plan how;
  job::path_table paths;
  const vectors_place* files;  // places_of(), in the order of the paths
  job::failure failed;
  answers to;
  progress* done;
  float* numbers;  // of the queries, one after another
  float* squares;  // sum of squares of each query
  char* slices;    // the queries, packed
  std::size_t bytes;

  // Places everything in `memory`, which is zeroed and begins with the lists. Null: only computes
  // `bytes`.
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
