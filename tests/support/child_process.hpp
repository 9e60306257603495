// Runs a part of a test in a separate process: for tests that change state of the process, or may
// end it.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace gpufs::testing {

// Thrown by code in a child if the system does not allow it. The test is then skipped.
class not_possible : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `body` in a separate process: this program started again, with only the calling test. So
// nothing from other tests exists there, in particular no threads. Both processes execute what the
// test does before this call.
//
// Fails the test, with the child's output, if the test fails in the child, if the child dies, or if
// it has not ended after `longest_s` seconds. Skips the test if `body` throws not_possible. Must be
// the last statement of a test.
void in_child(const std::function<void()>& body, unsigned longest_s = 60);

// Called by a child: enters a new mount namespace, so that its mounts disappear when it and its
// children have ended, in any way. It may mount there: as root of a user namespace, or as root.
// Throws not_possible.
void enter_own_namespace();

}  // namespace gpufs::testing
