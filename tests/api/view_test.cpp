// view<T>: elements of every size, wherever pages end, read by many threads at once.
#include <errno.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "api/file_world.hpp"
#include "api/session.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/fault_backend.hpp"

namespace gpufs::testing {

// The sizes and alignments that elements have in practice.
template <std::size_t Bytes>
struct packed {
  unsigned char bytes[Bytes];
};
struct three_floats {
  float x, y, z;
};
struct three_doubles {
  double x, y, z;
};

enum class reading { forwards, backwards, three_at_a_time };

// Thread t reads the elements t, t + threads, ... and puts them in `output`; all with one view.
template <class T>
struct view_kernel {
  std::int32_t fd;
  std::uint64_t offset;
  std::uint64_t first;
  std::uint64_t count;
  reading how;
  T* output;
  std::uint64_t* size;
  std::int32_t* errors;  // one for each element: error() after it was read

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const view<T> elements(fs, fd, offset);
    const std::uint64_t stride = thread_group::grid_size();
    for (std::uint64_t k = thread_group::grid_rank(); k < count;) {
      if (how == reading::three_at_a_time) {
        const std::uint64_t places[3] = {k, k + stride < count ? k + stride : k,
                                         k + 2 * stride < count ? k + 2 * stride : k};
        const std::uint64_t indices[3] = {first + places[0], first + places[1], first + places[2]};
        T values[3]{};
        elements.read(indices, values);
        for (int n = 0; n < 3; ++n) {
          output[places[n]] = values[n];
          errors[places[n]] = elements.error();
        }
        k += 3 * stride;
      } else {
        const std::uint64_t i = how == reading::backwards ? count - 1 - k : k;
        output[i] = elements[first + i];
        errors[i] = elements.error();
        k += stride;
      }
    }
    if (thread_group::grid_rank() == 0) *size = elements.size();
  }
};

namespace {

template <class T>
class view_test : public ::testing::Test {
 protected:
  view_test()
      : files(file_world::make(source::memory)), io(std::make_shared<fault_backend>(files->io())) {
    options = base_options();
    options.page_bytes = 512;
    options.backend = io;
  }

  mount& fs() {
    if (mounted == nullptr) mounted = std::make_unique<mount>(options);
    return *mounted;
  }
  std::int32_t open(const std::string& name) {
    return session(fs(), group_kind::thread).open(files->path(name));
  }

  struct answer {
    std::uint64_t size;
    std::vector<T> values;
    std::vector<std::int32_t> errors;
  };
  answer read(std::int32_t fd, std::uint64_t offset, std::uint64_t first, std::uint64_t count,
              launch_shape shape = {2, 64}, reading how = reading::forwards) {
    const device_array<T> output(fs(), count);
    const device_array<std::uint64_t> size(fs(), 1);
    const device_array<std::int32_t> errors(fs(), count);
    launch(
        fs(), shape,
        view_kernel<T>{fd, offset, first, count, how, output.data(), size.data(), errors.data()});
    return {size.download().front(), output.download(), errors.download()};
  }
  static std::string bytes_of(const std::vector<T>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }

  std::unique_ptr<file_world> files;
  std::shared_ptr<fault_backend> io;
  mount_options options;
  std::unique_ptr<mount> mounted;
};

using element_types = ::testing::Types<std::uint8_t, std::uint16_t, packed<3>, float, std::uint64_t,
                                       three_floats, vector16, three_doubles>;
TYPED_TEST_SUITE(view_test, element_types);

TYPED_TEST(view_test, gives_every_element_also_across_pages) {
  const std::string content = self_checking(3, 0, 0, 5 * 512 + 100);
  this->files->write("a", content);
  const std::int32_t fd = this->open("a");
  ASSERT_GE(fd, 0);
  for (const std::uint64_t offset : {0, 1, 3, 8, 500, 511}) {
    const std::uint64_t size = (content.size() - offset) / sizeof(TypeParam);
    for (const reading how :
         {reading::three_at_a_time, reading::forwards, reading::three_at_a_time}) {
      const auto answer = this->read(fd, offset, 0, size, {2, 64}, how);
      EXPECT_EQ(answer.size, size);
      expect_same_bytes(this->bytes_of(answer.values),
                        content.substr(offset, size * sizeof(TypeParam)),
                        "from offset " + std::to_string(offset));
      EXPECT_EQ(answer.errors, std::vector<std::int32_t>(size, 0));
    }
  }
}

TYPED_TEST(view_test, elements_that_are_not_there_are_zero_and_an_error) {
  this->files->write("a", self_checking(3, 0, 0, 5 * sizeof(TypeParam) + sizeof(TypeParam) - 1));
  const std::int32_t fd = this->open("a");
  const auto answer = this->read(fd, 0, 4, 3);
  EXPECT_EQ(answer.size, 5u);
  EXPECT_EQ(answer.errors, (std::vector<std::int32_t>{0, -EINVAL, -EINVAL}));
  EXPECT_EQ(this->bytes_of(answer.values).substr(sizeof(TypeParam)),
            std::string(2 * sizeof(TypeParam), '\0'));
  const auto together = this->read(fd, 0, 4, 3, {1, 1}, reading::three_at_a_time);
  EXPECT_EQ(this->bytes_of(together.values), this->bytes_of(answer.values));
  EXPECT_EQ(together.errors, std::vector<std::int32_t>(3, -EINVAL));

  for (const std::uint64_t offset : {std::uint64_t{5 * sizeof(TypeParam) + sizeof(TypeParam)},
                                     std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    const auto behind = this->read(fd, offset, 0, 1);
    EXPECT_EQ(behind.size, 0u);
    EXPECT_EQ(behind.errors.front(), -EINVAL);
  }
  const auto far =
      this->read(fd, 1, ~std::uint64_t{0} / sizeof(TypeParam), 1);  // index times size does not fit
  EXPECT_EQ(far.errors.front(), -EINVAL);
}

TYPED_TEST(view_test, one_error_leaves_the_other_elements) {
  const std::string content = self_checking(3, 0, 0, 5 * sizeof(TypeParam));
  this->files->write("a", content);
  const auto answer = this->read(this->open("a"), 0, 0, 7, {1, 1}, reading::backwards);
  EXPECT_EQ(answer.size, 5u);
  EXPECT_EQ(answer.errors, std::vector<std::int32_t>(7, -EINVAL)) << "the first error stays";
  expect_same_bytes(this->bytes_of(answer.values),
                    content + std::string(2 * sizeof(TypeParam), '\0'), "behind an error");
}

TYPED_TEST(view_test, an_error_of_the_host_is_told_and_not_kept) {
  const std::string content = self_checking(3, 0, 0, 20000);
  this->files->write("a", content);
  const std::int32_t fd = this->open("a");
  fault rule;
  rule.error_number = EIO;
  this->io->add(rule);
  const auto answer = this->read(fd, 0, 0, 10);
  EXPECT_EQ(answer.errors, std::vector<std::int32_t>(10, -EIO));
  EXPECT_EQ(this->bytes_of(answer.values), std::string(10 * sizeof(TypeParam), '\0'));
  this->io->clear();
  const auto again = this->read(fd, 0, 0, 10);
  EXPECT_EQ(again.errors, std::vector<std::int32_t>(10, 0));
  expect_same_bytes(this->bytes_of(again.values), content.substr(0, 10 * sizeof(TypeParam)),
                    "after the error");
}

TYPED_TEST(view_test, a_truncated_file_gives_errors_and_no_rest_of_it) {
  this->files->write("a", self_checking(3, 0, 0, 20000));
  const std::int32_t fd = this->open("a");
  this->files->truncate("a", 10 * sizeof(TypeParam));
  const auto answer = this->read(fd, 0, 8, 4);
  EXPECT_EQ(answer.size, 20000 / sizeof(TypeParam)) << "as of its open";
  EXPECT_EQ(answer.errors, (std::vector<std::int32_t>{0, 0, -EINVAL, -EINVAL}));
  expect_same_bytes(this->bytes_of(answer.values),
                    self_checking(3, 0, 8 * sizeof(TypeParam), 2 * sizeof(TypeParam)) +
                        std::string(2 * sizeof(TypeParam), '\0'),
                    "around the new end");
}

TYPED_TEST(view_test, a_warp_that_reads_one_page_faults_once) {
  this->options.page_bytes = 4096;
  this->files->write("a", self_checking(3, 0, 0, 20000));
  const std::int32_t fd = this->open("a");
  const auto answer = this->read(fd, 0, 0, 32, {1, 32});
  EXPECT_EQ(answer.errors, std::vector<std::int32_t>(32, 0));
  const statistics s = this->fs().stats();
  EXPECT_EQ(s[counter::staged_loads], 1u);
  EXPECT_EQ(s[counter::lost_races], 0u);
  if (this->fs().device() == device_kind::cuda) {
    EXPECT_EQ(s[counter::hits] + s[counter::minor_faults], 0u)
        << "lanes did not fault as one group";
  }
}

TYPED_TEST(view_test, a_warp_that_reads_many_pages_gets_them_all) {
  this->options.cache_bytes = 64 * 512;
  const std::string content = self_checking(3, 0, 0, 32 * 512 * 8);
  this->files->write("a", content);
  const std::int32_t fd = this->open("a");
  // Elements far apart, several to a page and several pages to a warp.
  const std::uint64_t stride = 200 / sizeof(TypeParam) + 1;
  std::string all;
  std::string expected;
  for (std::uint64_t first = 0; first + 64 < content.size() / sizeof(TypeParam);
       first += 64 * stride) {
    const auto answer = this->read(fd, 0, first, 64, {1, 64});
    EXPECT_EQ(answer.errors, std::vector<std::int32_t>(64, 0));
    all += this->bytes_of(answer.values);
    expected += content.substr(first * sizeof(TypeParam), 64 * sizeof(TypeParam));
  }
  expect_same_bytes(all, expected, "spread elements");
}

}  // namespace
}  // namespace gpufs::testing
