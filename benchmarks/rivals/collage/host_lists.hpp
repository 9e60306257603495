// Lists of candidates. Host threads make them from mapped tables.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "collage/collage.hpp"
#include "collage/features.hpp"
#include "common/owned_file.hpp"

namespace gpufs::collage {

class mapped_tables {
 public:
  explicit mapped_tables(const dataset& from)
      : path_(from.tables), places_(from.places), mapping_(from.tables, from.places.file_bytes()) {}

  // Maps all pages, so that the first reads do not fault.
  void bring() const { populate(mapping_.data(), mapping_.data() + places_.file_bytes()); }

  // Returns the tiles in the buckets with these keys, one key for each table, without duplicates.
  void make_list(const std::uint32_t* keys, std::vector<std::uint32_t>& list) const {
    std::uint32_t slots[slot_count] = {};  // a tile's number + 1; 0: free
    list.clear();
    for (std::uint32_t t = 0; t < table_count; ++t) {
      const std::uint32_t* const bounds = words(places_.offsets(t)) + keys[t];
      if (bounds[0] > bounds[1] || bounds[1] > places_.tiles)
        throw error(EINVAL, "not what a collage dataset holds", path_);
      const std::uint32_t* const numbers = words(places_.numbers(t)) + bounds[0];
      const std::uint32_t count = std::min(bounds[1] - bounds[0], taken_of_bucket);
      for (std::uint32_t i = 0; i < count; ++i) {
        if (numbers[i] >= places_.tiles)
          throw error(EINVAL, "not what a collage dataset holds", path_);
        const std::uint32_t key = numbers[i] + 1;
        std::uint32_t slot = key * 0x9e37'79b1u % slot_count;
        while (slots[slot] != 0 && slots[slot] != key) slot = (slot + 1) % slot_count;
        if (slots[slot] == 0) list.push_back(numbers[i]);
        slots[slot] = key;
      }
    }
    if (list.empty()) list.push_back(tile_instead(keys[0], places_.tiles));
  }

 private:
  static constexpr std::uint32_t slot_count = 2 * candidates_max;
  const std::uint32_t* words(std::uint64_t at) const {
    return reinterpret_cast<const std::uint32_t*>(mapping_.data() + at);
  }
  const std::string path_;
  const table_places places_;
  const owned_mapping mapping_;
};

}  // namespace gpufs::collage
