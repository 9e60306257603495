// One run of the fsx test (fsx_group.hpp): a random mount, groups that use files at the same time,
// outside programs.
#pragma once

#include <cstdint>
#include <string>

namespace gpufs::testing {

// In a temporary folder below `folder`, or below the system's where that is empty. Fails the
// running test. Returns the number of calls that kernels made.
std::uint64_t run_fsx(std::uint64_t seed, const std::string& folder = {});

}  // namespace gpufs::testing
