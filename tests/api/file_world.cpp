#include "api/file_world.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "gpufs/error.hpp"
#include "service/file_table.hpp"

namespace gpufs::testing {
namespace {

void check(bool good, const std::string& what, const std::string& path) {
  if (!good) throw error(errno, what, path);
}

class posix_world final : public file_world {
 public:
  explicit posix_world(const std::string& in) : io_(make_posix_backend()) {
    std::string name =
        (in.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(in)) /
        "gpufs-test-XXXXXX";
    check(mkdtemp(name.data()) != nullptr, "mkdtemp", name);
    folder_ = name;
  }
  ~posix_world() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  posix_world(const posix_world&) = delete;
  posix_world& operator=(const posix_world&) = delete;

  std::shared_ptr<backend> io() const override { return io_; }
  std::string path(const std::string& name) const override { return folder_ + "/" + name; }
  std::string path_of_length(const std::string& name, std::size_t bytes) override {
    return folder_ + std::string(bytes - folder_.size() - name.size(), '/') + name;
  }

  void write(const std::string& name, std::string_view content) override {
    put(name, content, 0, O_TRUNC);
  }
  void write_at(const std::string& name, std::uint64_t offset, std::string_view content) override {
    put(name, content, offset, 0);
  }
  void truncate(const std::string& name, std::uint64_t size) override {
    check(::truncate(path(name).c_str(), static_cast<off_t>(size)) == 0, "truncate", path(name));
  }
  void replace(const std::string& name, std::string_view content) override {
    write(name + ".new", content);
    check(rename(path(name + ".new").c_str(), path(name).c_str()) == 0, "rename", path(name));
  }
  void remove(const std::string& name) override {
    check(unlink(path(name).c_str()) == 0, "unlink", path(name));
  }
  std::string content(const std::string& name) const override {
    std::ifstream in(path(name), std::ios::binary);
    check(in.is_open(), "open", path(name));
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  bool exists(const std::string& name) const override {
    return access(path(name).c_str(), F_OK) == 0;
  }
  void make_directory(const std::string& name) override {
    check(mkdir(path(name).c_str(), 0755) == 0, "mkdir", path(name));
  }
  void make_fifo(const std::string& name) override {
    check(mkfifo(path(name).c_str(), 0644) == 0, "mkfifo", path(name));
  }
  void make_link(const std::string& name, const std::string& target) override {
    check(symlink(target.c_str(), path(name).c_str()) == 0, "symlink", path(name));
  }
  void settle() override {
    std::this_thread::sleep_for(std::chrono::nanoseconds(file_table::racy_ns) +
                                std::chrono::milliseconds(100));
  }

 private:
  void put(const std::string& name, std::string_view content, std::uint64_t offset, int flags) {
    const int fd = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
    check(fd >= 0, "open", path(name));
    const ssize_t n = pwrite(fd, content.data(), content.size(), static_cast<off_t>(offset));
    const int status = n < 0 ? errno : n == static_cast<ssize_t>(content.size()) ? 0 : ENOSPC;
    (void)::close(fd);
    if (status != 0) throw error(status, "write", path(name));
  }

  const std::shared_ptr<backend> io_;
  std::string folder_;
};

class memory_world final : public file_world {
 public:
  memory_world() : io_(std::make_shared<memory_backend>()) {}

  std::shared_ptr<backend> io() const override { return io_; }
  std::string path(const std::string& name) const override { return "/memory/" + name; }
  std::string path_of_length(const std::string& name, std::size_t bytes) override {
    std::string other = path(name);
    other.resize(bytes, 'x');
    io_->make_link(other, path(name));
    return other;
  }

  void write(const std::string& name, std::string_view content) override {
    io_->write(path(name), content);
  }
  void write_at(const std::string& name, std::uint64_t offset, std::string_view content) override {
    io_->write_at(path(name), offset, content);
  }
  void truncate(const std::string& name, std::uint64_t size) override {
    io_->truncate(path(name), size);
  }
  void replace(const std::string& name, std::string_view content) override {
    io_->replace(path(name), content);
  }
  void remove(const std::string& name) override { io_->remove(path(name)); }
  std::string content(const std::string& name) const override { return io_->content(path(name)); }
  bool exists(const std::string& name) const override { return io_->exists(path(name)); }
  void make_directory(const std::string& name) override { io_->make_directory(path(name)); }
  void make_fifo(const std::string& name) override { io_->make_fifo(path(name)); }
  void make_link(const std::string& name, const std::string& target) override {
    io_->make_link(path(name), path(target));
  }
  void settle() override {}

 private:
  const std::shared_ptr<memory_backend> io_;
};

}  // namespace

std::string self_checking(unsigned file, unsigned generation, std::uint64_t offset,
                          std::uint64_t bytes) {
  const std::uint64_t first = offset / 8;
  std::string words((offset + bytes + 7) / 8 * 8 - first * 8, '\0');
  for (std::uint64_t w = 0; w < words.size() / 8; ++w) {
    const std::uint64_t word =
        (std::uint64_t{file} << 56 | std::uint64_t{generation} << 48) ^ (first + w);
    std::memcpy(words.data() + w * 8, &word, 8);
  }
  return words.substr(offset - first * 8, bytes);
}

std::unique_ptr<file_world> file_world::make(source where, const std::string& in) {
  if (where == source::posix) return std::make_unique<posix_world>(in);
  return std::make_unique<memory_world>();
}

}  // namespace gpufs::testing
