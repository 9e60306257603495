// Checks the user's options and computes the arena's layout from them.
#pragma once

#include "device/device.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs {

// Returns the options with defaults filled in. Throws gpufs::error (EINVAL), naming the invalid
// option.
mount_options complete(const mount_options& asked, const device& d);

// Returns the layout of an arena for complete options. `direct`, `bulk`: whether these paths exist.
arena_layout lay_out(const mount_options& options, unsigned multiprocessors, bool direct,
                     bool bulk);

}  // namespace gpufs
