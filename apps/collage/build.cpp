#include "collage/build.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "collage/synthetic.hpp"
#include "job/in_threads.hpp"

namespace gpufs::collage {
namespace {

constexpr std::uint64_t written_at_once = 256;  // tiles
// tiles from which the thresholds (medians) are computed
constexpr std::uint64_t sample_max = 1 << 14;
constexpr std::uint32_t drawn_for_table = 96;  // functions of which a table gets the best
// A table takes two words for each tile while it is made. This many are made at a time.
constexpr unsigned tables_at_once = sizeof(feature) / (2 * sizeof(std::uint32_t));

// About eight tiles in a bucket, if buckets were even.
std::uint32_t bits_for(std::uint64_t tiles) {
  const auto whole = static_cast<std::uint32_t>(std::bit_width(tiles)) - 1;
  return std::clamp(whole < 3 ? 0 : whole - 3, bits_min, bits_max);
}

// A sum of eight different elements, with signs.
hash_function draw_function(random_numbers& random) {
  hash_function f{};
  for (std::uint8_t* term = std::begin(f.terms); term != std::end(f.terms);) {
    const std::uint64_t drawn = random.next();
    const auto element = static_cast<std::uint8_t>((drawn >> 32) % feature_length);
    const bool is_there = std::any_of(f.terms, term, [&](std::uint8_t t) {
      return (t & (hash_function::negative - 1)) == element;
    });
    if (is_there) continue;
    *term++ = static_cast<std::uint8_t>(element | ((drawn & 1) != 0 ? hash_function::negative : 0));
  }
  return f;
}

// A function, and its results for a sample of tiles.
struct drawn_function {
  hash_function function;
  std::vector<std::uint64_t> above;  // one bit for each tile
  std::uint64_t dependence;  // how much it depends on earlier functions; the least is the best
};

std::uint64_t square_of_excess(std::uint64_t half, std::uint64_t all) {
  const auto excess = static_cast<std::int64_t>(2 * half) - static_cast<std::int64_t>(all);
  return static_cast<std::uint64_t>(excess * excess);
}

// With the median as the threshold, half of the sample is above it, if there are many different
// sums.
drawn_function draw(random_numbers& random, const std::vector<feature>& sample) {
  drawn_function made{draw_function(random), std::vector<std::uint64_t>(sample.size() / 64 + 1), 0};
  std::vector<std::int32_t> sums(sample.size());
  std::ranges::transform(sample, sums.begin(),
                         [&](const feature& of) { return projection(made.function, of.data()); });
  const auto middle = sums.begin() + static_cast<std::ptrdiff_t>(sums.size() / 2);
  std::ranges::nth_element(sums, middle);
  made.function.threshold = *middle;
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < sample.size(); ++i) {
    const std::uint64_t bit = key_bit(made.function, sample[i].data());
    made.above[i / 64] |= bit << i % 64;
    count += bit;
  }
  made.dependence = square_of_excess(count, sample.size());
  return made;
}

template <class T>
void write(const owned_file& file, const std::vector<T>& values, std::uint64_t at) {
  file.write(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T), at);
}

}  // namespace

dataset_builder::dataset_builder(const std::string& folder, unsigned threads)
    : threads_(std::max(threads, 1u)), records_(folder + "/records", O_RDWR | O_CREAT | O_EXCL),
      tables_(folder + "/tables", O_RDWR | O_CREAT | O_EXCL),
      functions_(table_places::functions_count) {}

template <class Make>
void dataset_builder::append(std::uint64_t count, const Make& make) {
  const std::uint64_t begin = tiles_, end = begin + count;
  if (count > tiles_max || end > tiles_max)
    throw error(EOVERFLOW, "a dataset of 2^32 tiles or more");
  while (features_.size() * chunk_tiles < end)
    features_.push_back(std::make_unique<feature[]>(chunk_tiles));
  std::atomic<std::uint64_t> next{begin};
  job::in_threads(std::min<std::uint64_t>(threads_, count / written_at_once + 1), [&](std::size_t) {
    std::vector<record> batch(written_at_once);
    for (;;) {
      const std::uint64_t first = next.fetch_add(written_at_once);
      if (first >= end) return;
      const std::uint64_t here = std::min(written_at_once, end - first);
      for (std::uint64_t i = 0; i < here; ++i) {
        make(first + i - begin, batch[i].picture);
        make_histogram(batch[i].picture, line_bytes, batch[i].histogram);
        feature_of(first + i) = make_feature(batch[i].histogram);
      }
      records_.write(reinterpret_cast<const char*>(batch.data()), here * sizeof(record),
                     first * sizeof(record));
    }
  });
  tiles_ = end;
}

void dataset_builder::add(const std::uint8_t* pictures, std::uint64_t count) {
  append(count, [&](std::uint64_t i, std::uint8_t* picture) {
    std::memcpy(picture, pictures + i * picture_bytes, picture_bytes);
  });
}

void dataset_builder::add_synthetic(std::uint64_t seed, std::uint64_t first, std::uint64_t count) {
  append(count, [&](std::uint64_t i, std::uint8_t* picture) {
    make_synthetic_tile(seed, first + i, picture);
  });
}

// Elements of a feature depend on each other, and so would functions that are drawn at random: most
// tiles would be in few buckets. Therefore each step takes, of many functions, the one that depends
// least on those before it.
void dataset_builder::choose_functions(const std::vector<feature>& sample, std::uint32_t bits,
                                       std::uint32_t table) {
  random_numbers random(table);
  std::vector<drawn_function> drawn;
  for (std::uint32_t i = 0; i < drawn_for_table; ++i) drawn.push_back(draw(random, sample));
  for (std::uint32_t b = 0; b < bits; ++b) {
    const auto best = std::ranges::min_element(drawn, {}, &drawn_function::dependence);
    functions_[table * bits_max + b] = best->function;
    const std::vector<std::uint64_t> taken = std::move(best->above);
    drawn.erase(best);
    for (drawn_function& other : drawn) {
      std::uint64_t differing = 0;
      for (std::size_t i = 0; i < taken.size(); ++i)
        differing += static_cast<std::uint64_t>(std::popcount(taken[i] ^ other.above[i]));
      other.dependence += square_of_excess(differing, sample.size());
    }
  }
}

void dataset_builder::write_table(const table_places& places, std::uint32_t table) {
  std::vector<std::uint32_t> keys(places.tiles), numbers(places.tiles);
  std::vector<std::uint32_t> offsets((std::size_t{1} << places.bits) + 1);
  for (std::uint64_t i = 0; i < places.tiles; ++i) {
    keys[i] = make_key(&functions_[table * bits_max], places.bits, feature_of(i));
    ++offsets[keys[i] + 1];
  }
  for (std::size_t k = 1; k < offsets.size(); ++k) offsets[k] += offsets[k - 1];
  write(tables_, offsets, places.offsets(table));
  for (std::uint64_t i = 0; i < places.tiles; ++i)
    numbers[offsets[keys[i]]++] = static_cast<std::uint32_t>(i);
  write(tables_, numbers, places.numbers(table));
}

void dataset_builder::finish() {
  if (tiles_ == 0) throw error(EINVAL, "a dataset without tiles");
  const table_places places{tiles_, bits_for(tiles_)};
  tables_.resize(places.file_bytes());
  std::vector<feature> sample(
      std::min<std::uint64_t>(places.tiles, sample_max));  // from all parts of the dataset
  for (std::uint64_t i = 0; i < sample.size(); ++i)
    sample[i] = feature_of(i * places.tiles / sample.size());
  std::atomic<std::uint32_t> next{0};
  job::in_threads(std::min(threads_, tables_at_once), [&](std::size_t) {
    for (std::uint32_t table; (table = next++) < table_count; ++tables_written_) {
      choose_functions(sample, places.bits, table);
      write_table(places, table);
    }
  });
  write(tables_, functions_, table_places::functions);
  header head{{}, header::right_version, table_count, places.tiles, places.bits, 0};
  std::ranges::copy(header::right_magic, head.magic);
  write(tables_, std::vector<header>{head}, 0);
}

}  // namespace gpufs::collage
