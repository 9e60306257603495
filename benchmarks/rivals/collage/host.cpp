#include <atomic>
#include <chrono>

#include "collage/host_features.hpp"
#include "common/for_each_processor.hpp"
#include "job/in_threads.hpp"
#include "rivals/collage/host_lists.hpp"
#include "rivals/collage/rivals.hpp"

namespace gpufs::collage {
namespace {

constexpr std::uint32_t blocks_at_once = 16;  // that a thread takes

// 16-bit sums, side by side, so that the compiler uses vectors of any width.
GPUFS_FOR_EACH_PROCESSOR std::uint32_t distance(const std::uint16_t* a, const std::uint16_t* b) {
  constexpr std::uint32_t lanes = 32;
  static_assert(
      histogram_length % lanes == 0 && histogram_length / lanes * tile_side * tile_side < 1u << 16,
      "a lane's sum is a uint16");
  std::uint16_t sums[lanes] = {};
  for (std::uint32_t i = 0; i < histogram_length; i += lanes) {
    for (std::uint32_t k = 0; k < lanes; ++k) {
      const std::uint16_t x = a[i + k], y = b[i + k];
      sums[k] =
          static_cast<std::uint16_t>(sums[k] + static_cast<std::uint16_t>(x < y ? y - x : x - y));
    }
  }
  std::uint32_t sum = 0;
  for (const std::uint16_t s : sums) sum += s;
  return sum;
}

}  // namespace

rival_result collage_on_host(const dataset& from, const block_picture& picture, unsigned threads) {
  const mapped_tables tables(from);
  const owned_mapping mapped(from.records, from.places.tiles * sizeof(record));
  const auto* const records = reinterpret_cast<const record*>(mapped.data());
  tables.bring();
  job::in_threads(threads, [&](std::size_t t) {
    populate(records + from.places.tiles * t / threads,
             records + from.places.tiles * (t + 1) / threads);
  });
  std::vector<std::uint32_t> tiles(picture.blocks());
  std::atomic<std::uint64_t> next{0};
  const auto start = std::chrono::steady_clock::now();
  job::in_threads(threads, [&](std::size_t) {
    std::vector<std::uint32_t> list;
    alignas(64) std::uint16_t histogram[histogram_length];
    for (std::uint64_t first; (first = next.fetch_add(blocks_at_once)) < tiles.size();) {
      for (std::uint64_t b = first;
           b < std::min<std::uint64_t>(first + blocks_at_once, tiles.size()); ++b) {
        const std::uint64_t stride = std::uint64_t{picture.columns} * line_bytes;
        make_histogram(picture.pixels + b / picture.columns * tile_side * stride +
                           b % picture.columns * line_bytes,
                       stride, histogram);
        const feature of = make_feature(histogram);
        std::uint32_t keys[table_count];
        for (std::uint32_t t = 0; t < table_count; ++t)
          keys[t] = make_key(&from.functions[t * bits_max], from.places.bits, of);
        tables.make_list(keys, list);
        std::uint64_t best = no_choice;
        for (const std::uint32_t tile : list)
          best = std::min(best, choice_of(distance(histogram, records[tile].histogram), tile));
        tiles[b] = tile_of(best);
      }
    }
  });
  return {std::move(tiles),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

}  // namespace gpufs::collage
