#include "collage/synthetic.hpp"

#include <algorithm>
#include <cstring>

#include "common/for_each_processor.hpp"

namespace gpufs::collage {
namespace {

// The parameters of a tile's lines, in 256ths of a value, byte by byte.
struct line_parts {
  std::int32_t level[line_bytes];     // in the first line
  std::int32_t slope[line_bytes];     // from line to line
  std::int32_t contrast[line_bytes];  // of the second colour
  std::int32_t side[line_bytes];      // above zero: the second colour
  std::int32_t side_slope;
  std::int32_t noise;
};

GPUFS_FOR_EACH_PROCESSOR void make_line(const line_parts& parts, std::int32_t y,
                                        const std::int8_t* noise, std::uint8_t* to) {
  for (std::uint32_t i = 0; i < line_bytes; ++i) {
    std::int32_t value = parts.level[i] + y * parts.slope[i] + noise[i] * parts.noise;
    value += parts.side[i] + y * parts.side_slope > 0 ? parts.contrast[i] : 0;
    to[i] = static_cast<std::uint8_t>(std::clamp(value >> 8, 0, 255));
  }
}

class draws {
 public:
  explicit draws(random_numbers& from) : from_(from) {}
  // From 0 to 255, and from -255 to 255; the latter mostly near 0.
  std::int32_t flat() { return static_cast<std::int32_t>(from_.next() >> 56); }
  std::int32_t around_zero() { return flat() - flat(); }
  // From 0 to 255, mostly near 0.
  std::int32_t rarely_large() { return flat() * flat() * flat() >> 16; }

 private:
  random_numbers& from_;
};

line_parts draw_parts(random_numbers& random) {
  draws draw(random);
  line_parts parts{};
  const std::int32_t brightness = 255 + draw.around_zero(), saturation = draw.rarely_large();
  const std::int32_t steepness = draw.rarely_large(), contrast = draw.around_zero();
  const std::int32_t across = draw.around_zero(), down = draw.around_zero();
  const std::int32_t normal_x = draw.around_zero(), normal_y = draw.around_zero();
  const std::int32_t edge_x = draw.flat() / 8, edge_y = draw.flat() / 8;
  parts.side_slope = normal_y;
  parts.noise = draw.rarely_large() / 2;
  for (std::uint32_t c = 0; c < channels; ++c) {
    const std::int32_t base = brightness * 128 + draw.around_zero() * saturation;
    const std::int32_t slope_x = (across + draw.around_zero() / 4) * steepness / 32;
    const std::int32_t slope_y = (down + draw.around_zero() / 4) * steepness / 32;
    const std::int32_t step = contrast * 256 + draw.around_zero() * saturation;
    for (std::int32_t x = 0; x < static_cast<std::int32_t>(tile_side); ++x) {
      const std::uint32_t i = static_cast<std::uint32_t>(x) * channels + c;
      parts.level[i] = base + slope_x * x;
      parts.slope[i] = slope_y;
      parts.contrast[i] = step;
      parts.side[i] = normal_x * (x - edge_x) - normal_y * edge_y;
    }
  }
  return parts;
}

}  // namespace

void make_synthetic_tile(std::uint64_t seed, std::uint64_t number, std::uint8_t* picture) {
  random_numbers random(random_numbers(seed).next() ^ number * 0xd6e8'feb8'6659'fd93);
  const line_parts parts = draw_parts(random);
  for (std::uint32_t y = 0; y < tile_side; ++y) {
    std::int8_t noise[line_bytes];
    for (std::uint32_t i = 0; i < line_bytes; i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random.next();
      std::memcpy(noise + i, &word, sizeof word);
    }
    make_line(parts, static_cast<std::int32_t>(y), noise, picture + y * line_bytes);
  }
}

}  // namespace gpufs::collage
