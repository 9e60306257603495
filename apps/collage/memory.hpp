// A picture and its results, in device memory.
#pragma once

#include <chrono>

#include "collage/plan.hpp"
#include "gpufs/device_array.hpp"

namespace gpufs::collage {

class picture_memory {
 public:
  // The measured time begins at the end of the constructor.
  picture_memory(mount& m, const plan& p, const dataset& from)
      : mount_(m), plan_(p), bytes_(m, p.bytes) {
    const std::vector<hash_function>& functions = from.functions;
    m.copy_to_device(data() + p.functions, functions.data(),
                     functions.size() * sizeof functions[0]);
    start_ = std::chrono::steady_clock::now();
  }
  char* data() const { return bytes_.data(); }

  // Copies the pixels of a band of block rows to the device. Waits for no kernel.
  void send(const block_picture& picture, std::uint32_t first_row) const {
    const std::uint64_t at = first_row * plan_.row_bytes();
    mount_.copy_to_device(data() + plan_.pixels + at, picture.pixels + at,
                          plan_.band_blocks(first_row) * picture_bytes);
  }
  // Copies the results to the host, after the kernels have ended.
  summary bring(const tiles_found& to) const {
    summary told{};
    const std::uint64_t numbers_bytes = plan_.blocks() * sizeof(std::uint32_t);
    mount_.copy_to_host(to.tiles, data() + plan_.tiles, numbers_bytes);
    told.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    mount_.copy_to_host(to.distances, data() + plan_.distances, numbers_bytes);
    mount_.copy_to_host(to.pixels, data() + plan_.collage, plan_.blocks() * picture_bytes);
    mount_.copy_to_host(&told.candidates, data() + plan_.candidates, sizeof told.candidates);
    return told;
  }

 private:
  mount& mount_;
  const plan& plan_;
  const device_array<char> bytes_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace gpufs::collage
