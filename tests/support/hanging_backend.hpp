// A backend that wraps another one, and one of whose calls hangs, as calls on a dead file server do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gpufs/backend.hpp"

namespace gpufs::testing {

// Thread-safe. What may hang: calls of the backend, of its files and of their mappings, by their names; the end of a file, "close",
// and that of a mapping, "munmap".
class hanging_backend final : public backend {
 public:
  // The `nth` call of this name hangs, counted from 1.
  hanging_backend(std::shared_ptr<backend> wrapped, std::string call, std::uint64_t nth);
  ~hanging_backend() override;

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override;
  int open_to_change(const std::string& path, const open_how& how, std::unique_ptr<backend_file>& file) override;
  int unlink(const std::string& path) override;
  int rename(const std::string& path, const std::string& new_path) override;
  std::unique_ptr<opener_stay> enter_opener() override;
  void close_handed() override;

  // The backend may be gone when the test still asks.
  class gate {
   public:
    gate(std::string call, std::uint64_t nth);
    ~gate();
    gate(const gate&) = delete;
    gate& operator=(const gate&) = delete;
    // Whether the call came.
    bool has_hung() const;
    // Lets it go on.
    void release();
    // Whether it has not gone on yet.
    bool is_occupied() const;
    // For the backend.
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
