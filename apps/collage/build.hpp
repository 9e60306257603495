// Builds datasets.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "collage/host_features.hpp"
#include "common/owned_file.hpp"

namespace gpufs::collage {

// Takes tiles, writes them, and at the end writes the tables. The number of tiles need not be known
// before. Used by one thread at a time, except the counters. Holds 96 bytes for each tile, and up
// to the same again while it makes the tables. Throws gpufs::error with a path if it cannot write,
// and ENOMEM.
class dataset_builder {
 public:
  // `folder` must exist and have no dataset. Works with `threads` threads.
  dataset_builder(const std::string& folder, unsigned threads);

  // Adds pictures of `picture_bytes` each, one after another. EOVERFLOW if there are more tiles
  // than numbers.
  void add(const std::uint8_t* pictures, std::uint64_t count);
  // Adds tiles of synthetic.hpp, beginning with number `first` there.
  void add_synthetic(std::uint64_t seed, std::uint64_t first, std::uint64_t count);
  // Writes the tables, which completes the dataset. EINVAL if there is no tile.
  void finish();

  std::uint64_t tiles() const { return tiles_; }
  std::uint32_t tables_written() const { return tables_written_; }

 private:
  // tiles whose features are allocated together
  static constexpr std::uint64_t chunk_tiles = 1 << 16;

  feature& feature_of(std::uint64_t tile) {
    return features_[tile / chunk_tiles][tile % chunk_tiles];
  }
  // `make(i, picture)` makes the picture of the i-th new tile.
  template <class Make>
  void append(std::uint64_t count, const Make& make);
  void choose_functions(const std::vector<feature>& sample, std::uint32_t bits,
                        std::uint32_t table);
  void write_table(const table_places& places, std::uint32_t table);

  const unsigned threads_;
  const owned_file records_, tables_;
  std::vector<std::unique_ptr<feature[]>> features_;
  std::vector<hash_function> functions_;
  std::atomic<std::uint64_t> tiles_{0};
  std::atomic<std::uint32_t> tables_written_{0};
};

}  // namespace gpufs::collage
