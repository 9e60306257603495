#include "fuzz/watched_backend.hpp"

#include <utility>

#include "gpufs/base/limits.hpp"

namespace gpufs::testing {
namespace {

constexpr const char* precious_path = "/precious";
constexpr const char* precious_content = "nobody may open it";

}  // namespace

class watched_backend::file final : public backend_file {
 public:
  file(std::shared_ptr<memory_backend> files, std::unique_ptr<backend_file> wrapped, bool writes,
       std::uint64_t bytes_max, std::shared_ptr<log> l)
      : files_(std::move(files)), wrapped_(std::move(wrapped)), writes_(writes),
        bytes_max_(bytes_max), log_(std::move(l)) {}

  int identify(file_identity& identity) override { return wrapped_->identify(identity); }
  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    require(bytes <= bytes_max_, "a read of more than there is room for");
    return wrapped_->read(to, bytes, offset);
  }
  std::unique_ptr<file_mapping> map(std::uint64_t, std::uint64_t) override { return nullptr; }
  double cached(const file_mapping&, std::uint64_t) override { return 0; }
  void read_ahead(std::uint64_t, std::uint64_t) override {}
  std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) override {
    require(writes_, "a write to a file that was opened to be read");
    require(bytes != 0 && bytes <= bytes_max_, "a write of nothing, or of more than there was");
    require(offset < limits::file_bytes_max && bytes <= limits::file_bytes_max - offset,
            "a write behind where files end");
    {
      const std::lock_guard lock(log_->mutex);
      log_->written.push_back({offset, std::string(from, bytes)});
    }
    return wrapped_->write(from, bytes, offset);
  }
  int truncate(std::uint64_t size) override {
    require(writes_, "a truncation of a file that was opened to be read");
    require(size < limits::file_bytes_max, "a truncation to more than files have");
    return wrapped_->truncate(size);
  }
  int sync() override {
    require(writes_, "a sync of a file that was opened to be read");
    return wrapped_->sync();
  }

 private:
  const std::shared_ptr<memory_backend> files_;  // first made, last gone
  const std::unique_ptr<backend_file> wrapped_;
  const bool writes_;
  const std::uint64_t bytes_max_;
  const std::shared_ptr<log> log_;
};

watched_backend::watched_backend(std::uint64_t bytes_max) : bytes_max_(bytes_max) { begin(); }

void watched_backend::begin() {
  (void)take_written();
  const std::lock_guard lock(mutex_);
  named_.clear();
  files_ = std::make_shared<memory_backend>();
  files_->write("/a", "0123456789");
  files_->write("/page", std::string(10'000, 'p'));
  files_->write(precious_path, precious_content);
  files_->make_directory("/folder");
  files_->make_link("/link", "/a");
}

void watched_backend::name(std::string path) {
  const std::lock_guard lock(mutex_);
  named_.insert(std::move(path));
}

std::vector<written_bytes> watched_backend::take_written() {
  const std::lock_guard lock(log_->mutex);
  return std::exchange(log_->written, {});
}

bool watched_backend::is_precious_untouched() const {
  const std::lock_guard lock(mutex_);
  return files_->exists(precious_path) && files_->content(precious_path) == precious_content;
}

// With mutex_.
int watched_backend::check_name(const std::string& path) {
  require(named_.contains(path), "a path that nobody named");
  return path == precious_path ? -EACCES : 0;
}

int watched_backend::open(const std::string& path, bool no_follow,
                          std::unique_ptr<backend_file>& opened) {
  const std::lock_guard lock(mutex_);
  if (const int status = check_name(path); status < 0) return status;
  std::unique_ptr<backend_file> wrapped;
  if (const int status = files_->open(path, no_follow, wrapped); status < 0) return status;
  opened = std::make_unique<file>(files_, std::move(wrapped), false, bytes_max_, log_);
  return 0;
}

int watched_backend::open_to_change(const std::string& path, const open_how& how,
                                    std::unique_ptr<backend_file>& opened) {
  const std::lock_guard lock(mutex_);
  if (const int status = check_name(path); status < 0) return status;
  require(how.mode <= 07777, "a mode that is none");
  std::unique_ptr<backend_file> wrapped;
  if (const int status = files_->open_to_change(path, how, wrapped); status < 0) return status;
  opened = std::make_unique<file>(files_, std::move(wrapped), how.write, bytes_max_, log_);
  return 0;
}

int watched_backend::unlink(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const int status = check_name(path);
  return status < 0 ? status : files_->unlink(path);
}

int watched_backend::rename(const std::string& path, const std::string& new_path) {
  const std::lock_guard lock(mutex_);
  for (const std::string& p : {path, new_path}) {
    if (const int status = check_name(p); status < 0) return status;
  }
  return files_->rename(path, new_path);
}

}  // namespace gpufs::testing
