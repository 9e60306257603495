// Mappings of files are bounded in number and in bytes, whatever files a kernel makes and opens.
#include "backend/counted_mapping.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/mapped_reads.hpp"
#include "gpufs/backend.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t page = 4096;

// Of memory, as on tmpfs: there a sparse file may have any size.
class sparse_file {
 public:
  explicit sparse_file(std::uint64_t bytes)
      : number_(static_cast<int>(syscall(SYS_memfd_create, "gpufs-test", 1u /* MFD_CLOEXEC */))) {
    EXPECT_EQ(ftruncate(number_, static_cast<off_t>(bytes)), 0);
  }
  ~sparse_file() { (void)::close(number_); }
  sparse_file(const sparse_file&) = delete;
  sparse_file& operator=(const sparse_file&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

TEST(counted_mappings, leave_most_of_the_address_space_to_the_program) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer leaves no room for mappings of 4 TiB";
#endif
  constexpr std::uint64_t large = copy_mapping::bytes_most / 4;
  const sparse_file file(2 * copy_mapping::bytes_most);
  EXPECT_EQ(copy_mapping::make(file.number(), copy_mapping::bytes_most + 1, 0, PROT_READ), nullptr);
  std::vector<char*> made;
  for (char* data = nullptr;
       made.size() < 8 && (data = copy_mapping::make(file.number(), large, 0, PROT_READ));)
    made.push_back(data);
  EXPECT_EQ(made.size(), 4u);
  for (char* const data : made) copy_mapping::end(data, large);
  // Those that were refused count no more.
  char* const again = copy_mapping::make(file.number(), 4 * large, 0, PROT_READ);
  ASSERT_NE(again, nullptr);
  copy_mapping::end(again, 4 * large);
}

TEST(counted_mappings, of_reads_are_none_for_a_file_that_is_larger_than_all_of_them) {
  const sparse_file file(4 * copy_mapping::bytes_most);
  EXPECT_EQ(mapped_reads::make(file.number()), nullptr);
}

// A page-table page of 4 KiB stands for 2 MiB of a mapping, and stays until the mapping ends.
TEST(counted_mappings, of_copies_have_page_tables_of_a_gibibyte_at_most) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer leaves no room for such mappings";
#endif
  constexpr std::uint64_t size = std::uint64_t{100} << 30, page_bytes = 4096,
                          bytes_of_page = std::uint64_t{2} << 20;
  const sparse_file file(size);
  std::vector<std::unique_ptr<mapped_reads>> made;
  while (made.size() < 100) {
    std::unique_ptr<mapped_reads> one = mapped_reads::make(file.number());
    if (one == nullptr) break;
    made.push_back(std::move(one));
  }
  EXPECT_GE(made.size(), 1u);
  EXPECT_LE(made.size() * size / bytes_of_page * page_bytes, std::uint64_t{1} << 30);
}

TEST(counted_mappings, of_extents_leave_some_to_the_program) {
  const temporary_folder folder;
  const std::shared_ptr<backend> files = make_posix_backend(posix_backend_options{});
  std::unique_ptr<backend_file> file;
  ASSERT_EQ(files->open(folder.write("file", std::string(page, 'f')), false, file), 0);
  std::vector<std::unique_ptr<file_mapping>> made;
  constexpr std::size_t most = 40'000;  // of 65,530 that Linux allows
  while (made.size() < most) {
    std::unique_ptr<file_mapping> one = file->map(0, page);
    if (one == nullptr) break;
    made.push_back(std::move(one));
  }
  EXPECT_LT(made.size(), most);
  EXPECT_GT(made.size(), std::size_t{20'000});
  made.clear();
  EXPECT_NE(file->map(0, page), nullptr);
}

}  // namespace
}  // namespace gpufs::testing
