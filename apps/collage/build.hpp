// Making datasets.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "collage/host_features.hpp"
#include "host_file.hpp"

namespace gpufs::collage {

// Takes tiles, as many as come, and writes them; then the tables. By one thread at a time, but for
// the counts. Holds 96 bytes for each tile, and while it makes the tables up to as much again.
// Throws gpufs::error with a path for what cannot be written, and ENOMEM.
class dataset_builder {
 public:
  // In a folder that is there and has no dataset. Works with so many threads.
  dataset_builder(const std::string& folder, unsigned threads);

  // Pictures of `picture_bytes` each, one behind the other. EOVERFLOW where there are more tiles
  // than numbers.
  void add(const std::uint8_t* pictures, std::uint64_t count);
  // Tiles that synthetic.hpp makes, of which the first has this number there.
  void add_synthetic(std::uint64_t seed, std::uint64_t first, std::uint64_t count);
  // Writes the tables: then the dataset is whole. EINVAL if there is no tile.
  void finish();

  std::uint64_t tiles() const { return tiles_; }
  std::uint32_t tables_written() const { return tables_written_; }

 private:
  static constexpr std::uint64_t chunk_tiles = 1 << 16;  // whose features are allocated together

  feature& feature_of(std::uint64_t tile) {
    return features_[tile / chunk_tiles][tile % chunk_tiles];
  }
  // `make(i, picture)` makes the i-th new tile's picture.
  template <class Make>
  void append(std::uint64_t count, const Make& make);
  void choose_functions(const std::vector<feature>& sample, std::uint32_t bits,
                        std::uint32_t table);
  void write_table(const table_places& places, std::uint32_t table);

  const unsigned threads_;
  const host_file records_, tables_;
  std::vector<std::unique_ptr<feature[]>> features_;
  std::vector<hash_function> functions_;
  std::atomic<std::uint64_t> tiles_{0};
  std::atomic<std::uint32_t> tables_written_{0};
};

}  // namespace gpufs::collage
