// Compiled by nvcc where there is one, by the host compiler otherwise.
#include "collage/collage.hpp"

#include <algorithm>
#include <iterator>

#include "collage/kernels.cuh"
#include "gpufs/launch.cuh"

namespace gpufs::collage {

tiles_found make_collage(const mount& m, const dataset& from, const block_picture& picture) {
  if (picture.blocks() == 0) throw error(EINVAL, "a picture without blocks");
  if (picture.blocks() > ~std::uint32_t{0}) throw error(EINVAL, "a picture of more than 2^32 blocks");
  if (m.options().page_bytes < page_bytes_min) throw error(EINVAL, "a collage needs pages of 1 KiB or more");
  const job_files files(m, {from.records, from.tables});
  const device_array<hash_function> functions(m, from.functions);
  const device_array<std::uint8_t> pixels(m, picture.bytes()), made(m, picture.bytes());
  const device_array<std::uint64_t> choices(m, picture.blocks());
  const device_array<atomic_word<std::uint64_t>> candidates(m, 1);
  m.copy_to_device(pixels.data(), picture.pixels, picture.bytes());

  const std::uint64_t resident = std::uint64_t{m.multiprocessors()} * tuned_shape::blocks_per_multiprocessor;
  const auto blocks = static_cast<std::uint32_t>(std::min(picture.blocks(), resident));
  // Without the bulk path, which has nothing to offer to those who read here and there.
  launch(m, {blocks, tuned_shape::block_threads_max, sizeof(block_memory), nullptr, false},
         find_tiles{{},
                    files[0],
                    files[1],
                    from.places,
                    functions.data(),
                    pixels.data(),
                    picture.columns,
                    picture.rows,
                    choices.data(),
                    made.data(),
                    candidates.data(),
                    files.failed()});
  files.finish("not what a collage dataset holds");

  tiles_found found{{}, {}, std::vector<std::uint8_t>(picture.bytes()), 0};
  std::vector<std::uint64_t> chosen(picture.blocks());
  m.copy_to_host(chosen.data(), choices.data(), chosen.size() * sizeof chosen[0]);
  m.copy_to_host(found.pixels.data(), made.data(), found.pixels.size());
  m.copy_to_host(&found.candidates, candidates.data(), sizeof found.candidates);
  std::ranges::transform(chosen, std::back_inserter(found.tiles), tile_of);
  std::ranges::transform(chosen, std::back_inserter(found.distances), distance_of);
  return found;
}

}  // namespace gpufs::collage
