// The part of the POSIX backend that only this library and its tests use.
#pragma once

#include <memory>
#include <string>

#include "gpufs/backend.hpp"

namespace gpufs {

// `proc`: where the proc file system is mounted.
std::shared_ptr<backend> make_posix_backend(const posix_backend_options& options,
                                            const std::string& proc);

}  // namespace gpufs
