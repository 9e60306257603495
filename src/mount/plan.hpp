// From options to numbers: checks what the user asked for and lays the arena out.
#pragma once

#include "device/device.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs {

// The options with defaults filled in. Throws gpufs::error EINVAL, naming the option that is
// impossible.
mount_options complete(const mount_options& asked, const device& d);

// Where everything lies in an arena for these (complete) options.
// `direct`, `bulk`: whether there are these paths.
arena_layout lay_out(const mount_options& options, unsigned multiprocessors, bool direct,
                     bool bulk);

}  // namespace gpufs
