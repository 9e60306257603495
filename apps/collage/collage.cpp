// Compiled by nvcc where there is one, by the host compiler otherwise.
#include "collage/collage.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "collage/kernels.cuh"
#include "device_array.hpp"
#include "job/job.hpp"

namespace gpufs::collage {

tiles_found make_collage(const mount& m, const dataset& from, const block_picture& picture) {
  if (picture.blocks() == 0) throw error(EINVAL, "a picture without blocks");
  if (picture.blocks() > ~std::uint32_t{0}) throw error(EINVAL, "a picture of more than 2^32 blocks");
  if (m.options().page_bytes < page_bytes_min) throw error(EINVAL, "a collage needs pages of 1 KiB or more");
  // Not alone, which is without the bulk path: it has nothing to offer to those who read here and there.
  const job::job work(m, "not what a collage dataset holds", {from.records, from.tables}, false);
  const device_array<hash_function> functions(m, from.functions);
  const device_array<std::uint8_t> pixels(m, picture.bytes()), made(m, picture.bytes());
  const device_array<std::uint64_t> choices(m, picture.blocks());
  const device_array<atomic_word<std::uint64_t>> candidates(m, 1);
  const auto start = std::chrono::steady_clock::now();
  m.copy_to_device(pixels.data(), picture.pixels, picture.bytes());
  // All warps' mappings together have room in half of the cache.
  const std::uint64_t warps = std::uint64_t{work.many()} * (job::job::threads / 32);
  const std::uint64_t room = m.options().cache_bytes / m.options().page_bytes / 2;
  const auto maps = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(room / warps, 1, 32));
  const find_tiles kernel{{},
                          work.path(role::records),
                          work.path(role::tables),
                          from.places,
                          functions.data(),
                          pixels.data(),
                          picture.columns,
                          picture.rows,
                          choices.data(),
                          made.data(),
                          candidates.data(),
                          maps,
                          work.failed()};
  work.launch(kernel, picture.blocks(), work.many(), sizeof(block_memory));
  work.finish();

  tiles_found found{};
  std::vector<std::uint64_t> chosen(picture.blocks());
  m.copy_to_host(chosen.data(), choices.data(), chosen.size() * sizeof chosen[0]);
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  m.copy_to_host(&found.candidates, candidates.data(), sizeof found.candidates);
  found.pixels.resize(picture.bytes());
  m.copy_to_host(found.pixels.data(), made.data(), found.pixels.size());
  std::ranges::transform(chosen, std::back_inserter(found.tiles), tile_of);
  std::ranges::transform(chosen, std::back_inserter(found.distances), distance_of);
  return found;
}

}  // namespace gpufs::collage
