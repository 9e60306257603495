// A backend whose calls hang on chosen paths, until the test lets them go on.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"

namespace gpufs::testing {

// A derived class sets `server_answers_` before its mounts end.
class hanging_server : public ::testing::Test {
 protected:
  // Calls of this kind on this path hang until the server answers. Then they return the error, if
  // any.
  void hang(operation on, const std::string& path, int error_number = 0) {
    const auto wait = [this] {
      ++hanging_;
      while (!server_answers_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --hanging_;
    };
    io_->add({.on = on, .path = path, .before = wait, .error_number = error_number});
  }
  void answer() {
    server_answers_ = true;
    EXPECT_TRUE(eventually([&] { return hanging_ == 0; }));
    io_->clear();
  }

  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_);
  std::atomic<bool> server_answers_{false};
  std::atomic<int> hanging_{0};  // calls
};

}  // namespace gpufs::testing
