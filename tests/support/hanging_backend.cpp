#include "support/hanging_backend.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace gpufs::testing {

struct hanging_backend::gate::state {
  std::string call;
  std::uint64_t nth;
  bool for_ever;
  std::atomic<std::uint64_t> count{0};
  std::mutex mutex;  // guards is_open
  std::condition_variable opened;
  bool is_open = false;
  std::atomic<bool> has_hung{false};
  std::atomic<int> occupants{0};
};

hanging_backend::gate::gate(std::string call, std::uint64_t nth, bool for_ever)
    : state_(std::make_unique<state>()) {
  state_->call = std::move(call);
  state_->nth = nth;
  state_->for_ever = for_ever;
}
hanging_backend::gate::~gate() = default;

bool hanging_backend::gate::has_hung() const { return state_->has_hung; }
bool hanging_backend::gate::is_occupied() const { return state_->occupants != 0; }

void hanging_backend::gate::release() {
  const std::lock_guard lock(state_->mutex);
  state_->is_open = true;
  state_->opened.notify_all();
}

void hanging_backend::gate::pass(std::string_view call) {
  // Counts all calls except the one that a timer makes.
  if (state_->call.empty() ? call == "close_handed" : call != state_->call) return;
  const std::uint64_t number = ++state_->count;
  if (state_->for_ever ? number < state_->nth : number != state_->nth) return;
  ++state_->occupants;
  state_->has_hung = true;
  {
    std::unique_lock lock(state_->mutex);
    state_->opened.wait(lock, [this] { return state_->is_open; });
  }
  --state_->occupants;
}

class hanging_backend::mapping final : public file_mapping {
 public:
  mapping(std::unique_ptr<file_mapping> wrapped, std::shared_ptr<gate> g)
      : wrapped_(std::move(wrapped)), gate_(std::move(g)) {}
  ~mapping() override { gate_->pass("munmap"); }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  char* data() const override { return wrapped_->data(); }
  std::uint64_t bytes() const override { return wrapped_->bytes(); }

 private:
  const std::unique_ptr<file_mapping> wrapped_;
  const std::shared_ptr<gate> gate_;
};

class hanging_backend::file final : public backend_file {
 public:
  file(std::unique_ptr<backend_file> wrapped, std::shared_ptr<gate> g)
      : wrapped_(std::move(wrapped)), gate_(std::move(g)) {}
  ~file() override { gate_->pass("close"); }
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  int identify(file_identity& identity) override { return passed("identify").identify(identity); }
  int prepare() override { return passed("prepare").prepare(); }
  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    return passed("read").read(to, bytes, offset);
  }
  void expect(std::uint64_t bytes, std::uint64_t offset) override {
    wrapped_->expect(bytes, offset);
  }
  std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
    std::unique_ptr<file_mapping> m = passed("map").map(offset, bytes);
    return m == nullptr ? nullptr : std::make_unique<mapping>(std::move(m), gate_);
  }
  double cached(const file_mapping& m, std::uint64_t offset) override {
    return passed("cached").cached(m, offset);
  }
  void fault_in(const file_mapping& m) override { passed("fault_in").fault_in(m); }
  void read_ahead(std::uint64_t offset, std::uint64_t bytes) override {
    passed("read_ahead").read_ahead(offset, bytes);
  }
  bool readable() const override { return wrapped_->readable(); }
  bool writes_together() const override { return wrapped_->writes_together(); }
  std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) override {
    return passed("write").write(from, bytes, offset);
  }
  int truncate(std::uint64_t size) override { return passed("truncate").truncate(size); }
  int sync() override { return passed("sync").sync(); }
  void tell_closes(std::shared_ptr<close_listener> listener) override {
    wrapped_->tell_closes(std::move(listener));
  }
  int report_close() override { return passed("report_close").report_close(); }

 private:
  backend_file& passed(const char* call) {
    gate_->pass(call);
    return *wrapped_;
  }
  const std::unique_ptr<backend_file> wrapped_;
  const std::shared_ptr<gate> gate_;
};

hanging_backend::hanging_backend(std::shared_ptr<backend> wrapped, std::string call,
                                 std::uint64_t nth, bool for_ever)
    : wrapped_(std::move(wrapped)), gate_(std::make_shared<gate>(std::move(call), nth, for_ever)) {}
hanging_backend::~hanging_backend() = default;

int hanging_backend::open(const std::string& path, bool no_follow,
                          std::unique_ptr<backend_file>& opened) {
  gate_->pass("open");
  std::unique_ptr<backend_file> f;
  const int status = wrapped_->open(path, no_follow, f);
  if (status == 0) opened = std::make_unique<file>(std::move(f), gate_);
  return status;
}

int hanging_backend::open_to_change(const std::string& path, const open_how& how,
                                    std::unique_ptr<backend_file>& opened) {
  gate_->pass("open_to_change");
  std::unique_ptr<backend_file> f;
  const int status = wrapped_->open_to_change(path, how, f);
  if (status == 0) opened = std::make_unique<file>(std::move(f), gate_);
  return status;
}

int hanging_backend::unlink(const std::string& path) {
  gate_->pass("unlink");
  return wrapped_->unlink(path);
}

int hanging_backend::rename(const std::string& path, const std::string& new_path) {
  gate_->pass("rename");
  return wrapped_->rename(path, new_path);
}

std::unique_ptr<descriptor_table_guard> hanging_backend::enter_opener() {
  gate_->pass("enter_opener");
  return wrapped_->enter_opener();
}

void hanging_backend::close_handed() {
  gate_->pass("close_handed");
  wrapped_->close_handed();
}

}  // namespace gpufs::testing
