// A part of a test in a process of its own: where it changes what belongs to the process, or may
// end it.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace gpufs::testing {

// Thrown by what runs in a child: the system does not allow it, so the test is skipped.
class not_possible : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `body` in a process of its own: this program once more, with the calling test alone. So
// nothing is there that other tests have left behind, threads in particular; and what the test does
// before this call is done in both processes. Fails the test with what the child printed when the
// test fails there, when the child dies, and when it has not ended after `longest_s` seconds; skips
// it when the body throws not_possible. The last thing that a test does.
void in_child(const std::function<void()>& body, unsigned longest_s = 60);

// By a child: a mount namespace of its own, so that what it mounts is gone when it and its children
// have ended, however they end. It has the right to mount there: as root of a user namespace, or as
// root. Throws not_possible.
void enter_own_namespace();

}  // namespace gpufs::testing
