#include "support/fault_backend.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "service/service.hpp"

namespace gpufs::testing {

struct fault_backend::rules {
  struct rule {
    fault what;
    std::uint64_t matching = 0;
    std::uint64_t struck = 0;
  };

  std::mutex mutex;  // guards all members below
  std::vector<rule> all;
  std::array<std::uint64_t, 12> calls{};
  std::uint64_t strikes = 0;
  std::mt19937_64 random;

  // Returns 0 or -errno; may reduce `bytes`. Effects of faults run without the lock, because they
  // may wait or use the backend.
  int strike(operation on, const std::string& path, std::uint64_t& bytes) {
    std::vector<fault> struck;
    {
      const std::lock_guard lock(mutex);
      ++calls[static_cast<std::size_t>(on)];
      for (rule& r : all) {
        if (r.what.on != on || (!r.what.path.empty() && r.what.path != path)) continue;
        ++r.matching;
        if (!strikes_now(r)) continue;
        ++r.struck;
        ++strikes;
        struck.push_back(r.what);
        if (r.what.worker_death || r.what.exception || r.what.error_number != 0) break;
      }
    }
    for (const fault& f : struck) {
      if (f.delay.count() != 0) std::this_thread::sleep_for(f.delay);
      if (f.before) f.before();
      if (f.worker_death) throw worker_death{};
      if (f.exception) throw std::runtime_error("fault_backend");
      if (f.error_number != 0) return -f.error_number;
      if (f.bytes_max != 0) bytes = std::min(bytes, f.bytes_max);
    }
    return 0;
  }

  bool strikes_now(const rule& r) {
    if (r.what.times_max != 0 && r.struck >= r.what.times_max) return false;
    if (r.what.nth != 0) return r.matching == r.what.nth;
    if (r.what.every != 0) return r.matching % r.what.every == 0;
    if (r.what.probability > 0)
      return std::uniform_real_distribution<double>(0, 1)(random) < r.what.probability;
    return true;
  }
};

class fault_backend::file final : public backend_file {
 public:
  file(std::unique_ptr<backend_file> wrapped, std::string path, std::shared_ptr<rules> r)
      : wrapped_(std::move(wrapped)), path_(std::move(path)), rules_(std::move(r)) {}
  ~file() override {
    std::uint64_t unused = 0;
    const int status = rules_->strike(operation::real_close, path_, unused);
    if (status < 0 && listener_ != nullptr) listener_->close_failed(status);
  }
  file(const file&) = delete;
  file& operator=(const file&) = delete;

  int identify(file_identity& identity) override {
    std::uint64_t bytes = 0;
    const int status = rules_->strike(operation::identify, path_, bytes);
    return status < 0 ? status : wrapped_->identify(identity);
  }
  int prepare() override { return wrapped_->prepare(); }
  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    const int status = rules_->strike(operation::read, path_, bytes);
    return status < 0 ? status : wrapped_->read(to, bytes, offset);
  }
  void expect(std::uint64_t bytes, std::uint64_t offset) override {
    wrapped_->expect(bytes, offset);
  }
  std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
    std::uint64_t unused = 0;
    return rules_->strike(operation::map, path_, unused) < 0 ? nullptr
                                                             : wrapped_->map(offset, bytes);
  }
  double cached(const file_mapping& mapping, std::uint64_t offset) override {
    return wrapped_->cached(mapping, offset);
  }
  void fault_in(const file_mapping& mapping) override { wrapped_->fault_in(mapping); }
  void read_ahead(std::uint64_t offset, std::uint64_t bytes) override {
    wrapped_->read_ahead(offset, bytes);
  }
  bool readable() const override { return wrapped_->readable(); }
  bool writes_together() const override { return wrapped_->writes_together(); }
  std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) override {
    const int status = rules_->strike(operation::write, path_, bytes);
    return status < 0 ? status : wrapped_->write(from, bytes, offset);
  }
  int truncate(std::uint64_t size) override {
    std::uint64_t unused = 0;
    const int status = rules_->strike(operation::truncate, path_, unused);
    return status < 0 ? status : wrapped_->truncate(size);
  }
  int sync() override {
    std::uint64_t unused = 0;
    const int status = rules_->strike(operation::sync, path_, unused);
    return status < 0 ? status : wrapped_->sync();
  }
  int report_close() override {
    std::uint64_t unused = 0;
    const int status = rules_->strike(operation::close, path_, unused);
    return status < 0 ? status : wrapped_->report_close();
  }
  void tell_closes(std::shared_ptr<close_listener> listener) override {
    listener_ = listener;
    wrapped_->tell_closes(std::move(listener));
  }

 private:
  const std::unique_ptr<backend_file> wrapped_;
  const std::string path_;
  const std::shared_ptr<rules> rules_;
  std::shared_ptr<close_listener> listener_;
};

fault_backend::fault_backend(std::shared_ptr<backend> wrapped, std::uint64_t seed)
    : wrapped_(std::move(wrapped)), rules_(std::make_shared<rules>()) {
  rules_->random.seed(seed);
}
fault_backend::~fault_backend() = default;

int fault_backend::open(const std::string& path, bool no_follow,
                        std::unique_ptr<backend_file>& opened) {
  std::uint64_t unused = 0;
  if (const int status = rules_->strike(operation::open, path, unused); status < 0) return status;
  std::unique_ptr<backend_file> wrapped;
  if (const int status = wrapped_->open(path, no_follow, wrapped); status < 0) return status;
  opened = std::make_unique<file>(std::move(wrapped), path, rules_);
  return 0;
}

int fault_backend::open_to_change(const std::string& path, const open_how& how,
                                  std::unique_ptr<backend_file>& opened) {
  std::uint64_t unused = 0;
  if (const int status = rules_->strike(operation::open, path, unused); status < 0) return status;
  std::unique_ptr<backend_file> wrapped;
  if (const int status = wrapped_->open_to_change(path, how, wrapped); status < 0) return status;
  opened = std::make_unique<file>(std::move(wrapped), path, rules_);
  return 0;
}

int fault_backend::unlink(const std::string& path) {
  std::uint64_t unused = 0;
  const int status = rules_->strike(operation::unlink, path, unused);
  return status < 0 ? status : wrapped_->unlink(path);
}

int fault_backend::rename(const std::string& path, const std::string& new_path) {
  std::uint64_t unused = 0;
  const int status = rules_->strike(operation::rename, path, unused);
  return status < 0 ? status : wrapped_->rename(path, new_path);
}

int fault_backend::sync_folder(const std::string& path) {
  std::uint64_t unused = 0;
  const int status = rules_->strike(operation::sync_folder, path, unused);
  return status < 0 ? status : wrapped_->sync_folder(path);
}

void fault_backend::add(fault rule) {
  const std::lock_guard lock(rules_->mutex);
  rules_->all.push_back({std::move(rule)});
}

void fault_backend::clear() {
  const std::lock_guard lock(rules_->mutex);
  rules_->all.clear();
}

std::uint64_t fault_backend::calls(operation on) const {
  const std::lock_guard lock(rules_->mutex);
  return rules_->calls[static_cast<std::size_t>(on)];
}

std::uint64_t fault_backend::strikes() const {
  const std::lock_guard lock(rules_->mutex);
  return rules_->strikes;
}

}  // namespace gpufs::testing
