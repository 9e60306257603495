// A separate file system, so small that it gets full.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace gpufs::testing {

// Runs `body(folder)` in a child process. There the folder is an empty tmpfs with room for `bytes`
// (in its own user and mount namespaces, so no rights are needed). Fails the calling test if a
// check fails in the child, if the child dies, or if it has not ended after a minute. Skips the
// test if the system allows no such namespace. Must be the last statement of a test.
void in_small_file_system(std::uint64_t bytes,
                          const std::function<void(const std::string& folder)>& body);

}  // namespace gpufs::testing
