// A backend that wraps another backend. One or all of its calls hang, as calls on a dead file
// server do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gpufs/backend.hpp"

namespace gpufs::testing {

// Thread-safe. The calls of the backend, of its files and of their mappings may hang, by their
// names. "close" is the destructor of a file, "munmap" that of a mapping.
class hanging_backend final : public backend {
 public:
  // The `nth` call of this name hangs, counted from 1, and with `for_ever` all later ones. An empty
  // name means all calls except close_handed, which a timer calls.
  hanging_backend(std::shared_ptr<backend> wrapped, std::string call, std::uint64_t nth,
                  bool for_ever = false);
  ~hanging_backend() override;

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override;
  int unlink(const std::string& path) override;
  int rename(const std::string& path, const std::string& new_path) override;
  std::unique_ptr<descriptor_table_guard> enter_opener() override;
  void close_handed() override;
  std::size_t kept_descriptors() const override { return wrapped_->kept_descriptors(); }

  // Shared, because a test may query it after the backend is gone.
  class gate {
   public:
    gate(std::string call, std::uint64_t nth, bool for_ever);
    ~gate();
    gate(const gate&) = delete;
    gate& operator=(const gate&) = delete;
    // Whether the call came.
    bool has_hung() const;
    // Releases all hanging calls; later calls do not hang.
    void release();
    // Whether some calls still hang.
    bool is_occupied() const;
    // Called by the backend.
    void pass(std::string_view call);

   private:
    struct state;
    const std::unique_ptr<state> state_;
  };
  const std::shared_ptr<gate>& calls() const { return gate_; }

 private:
  class file;
  class mapping;
  const std::shared_ptr<backend> wrapped_;
  const std::shared_ptr<gate> gate_;
};

}  // namespace gpufs::testing
