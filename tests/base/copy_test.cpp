// Copies made by groups: every alignment of both sides, sizes around those at which the code goes
// other ways, and not one byte beyond.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gpufs/base/copy.cuh"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/device.hpp"

namespace gpufs::testing {

enum class copy_way : std::uint32_t { from_frame, from_host, to_host, fill_zero };

// One group makes one copy for each of the 16 x 16 alignments; each has a region of the target for
// itself.
template <class Group>
struct copy_alignments_kernel {
  const char* from;
  char* to;
  std::uint64_t region_bytes;
  std::uint64_t bytes;
  copy_way way;

  GPUFS_HD void operator()(const mount_ref&) const {
    const Group g{};
    for (std::uint64_t i = Group::grid_rank(); i < 256; i += Group::grid_size()) {
      char* target = to + i * region_bytes + i % 16;
      const char* source = from + i / 16;
      if (way == copy_way::from_frame) copy_from_frame(g, target, source, bytes);
      if (way == copy_way::from_host) copy_from_host(g, target, source, bytes);
      if (way == copy_way::to_host) copy_to_host(g, target, source, bytes);
      if (way == copy_way::fill_zero) fill_zero(g, target, bytes);
    }
  }
};

template <class Group>
class group_copy : public ::testing::Test {
 protected:
  static constexpr std::uint64_t bytes_max = 8192;
  static constexpr std::uint64_t region_bytes = bytes_max + 32;

  group_copy()
      : mount_(base_options()), source_(bytes_max + 16), from_(mount_, source_.size()),
        to_(mount_, 256 * region_bytes) {
    for (std::size_t i = 0; i < source_.size(); ++i)
      source_[i] = static_cast<char>(1 + i * 7 % 255);  // never 0
    from_.upload(source_);
  }

  void expect_exact(copy_way way) {
    std::vector<std::uint64_t> sizes{0, 1, 15, 16, 17, 4096, 8191, 8192};
    if (device() == device_kind::cuda) {
      for (std::uint64_t n = 2; n < 50; ++n) sizes.push_back(n);
      // Around a vector per member, and around eight, of a warp and of a block of 96 threads.
      for (const std::uint64_t n : {64, 127, 128, 129, 512, 513, 1535, 1536, 1537, 4095, 4097})
        sizes.push_back(n);
    }
    const std::vector<char> untouched(256 * region_bytes, '\xee');
    for (const std::uint64_t bytes : sizes) {
      to_.upload(untouched);
      launch(mount_, {16, 96, 0, nullptr},
             copy_alignments_kernel<Group>{from_.data(), to_.data(), region_bytes, bytes, way});
      expect_copied(to_.download(), way, bytes);
      if (::testing::Test::HasFailure()) return;
    }
  }

 private:
  void expect_copied(const std::vector<char>& got, copy_way way, std::uint64_t bytes) const {
    std::vector<char> expected(region_bytes);
    for (std::uint64_t i = 0; i < 256; ++i) {
      expected.assign(region_bytes, '\xee');
      for (std::uint64_t b = 0; b < bytes; ++b)
        expected[i % 16 + b] = way == copy_way::fill_zero ? '\0' : source_[i / 16 + b];
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                             got.begin() + static_cast<std::ptrdiff_t>(i * region_bytes)))
          << bytes << " bytes, target at " << i % 16 << ", source at " << i / 16;
    }
  }

  mount mount_;
  std::vector<char> source_;
  device_array<char> from_, to_;
};

using all_groups = ::testing::Types<thread_group, warp_group, block_group>;
TYPED_TEST_SUITE(group_copy, all_groups);

TYPED_TEST(group_copy, from_a_frame_is_exact) { this->expect_exact(copy_way::from_frame); }
TYPED_TEST(group_copy, from_host_memory_is_exact) { this->expect_exact(copy_way::from_host); }
TYPED_TEST(group_copy, to_host_memory_is_exact) { this->expect_exact(copy_way::to_host); }
TYPED_TEST(group_copy, fill_zero_is_exact) { this->expect_exact(copy_way::fill_zero); }

}  // namespace gpufs::testing
