#include "simulation/disk.hpp"

#include <errno.h>

#include <utility>

#include "service/service.hpp"
#include "simulation/scheduler.hpp"

namespace gpufs::testing {

int disk::state::begin(kind what) {
  using simulated::below;
  const std::uint64_t most = below(2) == 0 ? options.delay_ns_max / 1000 : options.delay_ns_max;
  if (most != 0) simulated::sleep_ns(below(most));
  simulated::point();
  if (is_mended) return 0;
  if (++calls == options.hangs_at) {
    while (!is_mended) simulated::sleep_ns(10'000'000);
    return 0;
  }
  const std::uint64_t chance = below(1024);
  if (chance >= (what == kind::changes ? options.failing_changes : options.failing_reads)) return 0;
  return below(2) == 0 ? EIO : what == kind::changes ? ENOSPC : ENOMEM;
}

void disk::state::end() {
  simulated::point();
  if (is_mended || deaths == options.deaths_max || simulated::below(4096) >= options.deaths) return;
  ++deaths;
  throw worker_death();
}

class disk::file final : public backend_file {
 public:
  file(std::unique_ptr<backend_file> inner, std::shared_ptr<state> s)
      : inner_(std::move(inner)), state_(std::move(s)) {}

  int identify(file_identity& identity) override {
    return made(kind::reads, "identify", [&] { return inner_->identify(identity); });
  }
  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    return made(kind::reads, "read", [&] { return inner_->read(to, bytes, offset); });
  }
  std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
    return state_->begin(kind::reads) != 0 ? nullptr : inner_->map(offset, bytes);
  }
  double cached(const file_mapping& mapping, std::uint64_t offset) override {
    return inner_->cached(mapping, offset);
  }
  void read_ahead(std::uint64_t offset, std::uint64_t bytes) override {
    inner_->read_ahead(offset, bytes);
  }
  bool readable() const override { return inner_->readable(); }
  std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) override {
    // In two parts, so that others meet the half of it.
    const std::uint64_t first = simulated::below(4) == 0 ? (bytes + 1) / 2 : bytes;
    return made(kind::changes, "write", [&] { return inner_->write(from, first, offset); });
  }
  int truncate(std::uint64_t size) override {
    return made(kind::changes, "truncate", [&] { return inner_->truncate(size); });
  }
  int sync() override {
    return made(kind::changes, "sync", [&] { return inner_->sync(); });
  }

 private:
  template <class Call>
  auto made(kind what, const char* name, const Call& call) -> decltype(call()) {
    const int error = state_->begin(what);
    if (error != 0 && simulated::below(2) == 0) {
      simulated::trace("disk", name, -error);
      return -error;
    }
    const auto result = call();
    simulated::trace("disk", name, error != 0 ? -error : result);
    state_->end();
    return error != 0 ? -error : result;
  }

  const std::unique_ptr<backend_file> inner_;
  const std::shared_ptr<state> state_;
};

template <class Call>
int disk::opened_by(const Call& call, std::unique_ptr<backend_file>& opened) {
  if (const int error = state_->begin(kind::reads); error != 0) return -error;
  const int result = call();
  if (result == 0) opened = std::make_unique<file>(std::move(opened), state_);
  state_->end();
  return result;
}
int disk::open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& opened) {
  return opened_by([&] { return files_->open(path, no_follow, opened); }, opened);
}
int disk::open_to_change(const std::string& path, const open_how& how,
                         std::unique_ptr<backend_file>& opened) {
  return opened_by([&] { return files_->open_to_change(path, how, opened); }, opened);
}

}  // namespace gpufs::testing
