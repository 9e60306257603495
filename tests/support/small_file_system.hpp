// A file system of the test's own, so small that it gets full.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace gpufs::testing {

// Runs `body(folder)` in a child process, in which the folder is an empty tmpfs with room for so
// many bytes (a user and a mount namespace of its own, so no rights are needed). Fails the calling
// test with what failed in the child, when it died, and when it has not ended after a minute; skips
// it where the system allows no such namespace. The last thing that a test does.
void in_small_file_system(std::uint64_t bytes,
                          const std::function<void(const std::string& folder)>& body);

}  // namespace gpufs::testing
