// The server of a fuse_folder.
#pragma once

#include <string>

#include "support/fuse_folder.hpp"

namespace gpufs::testing {

// Answers what the kernel asks through `device`, an open /dev/fuse that is mounted, with what is in
// the folder `served`. Ends with the connection. A file that others have removed on the server is
// stale, as with NFS: ESTALE.
[[noreturn]] void serve_fuse(int device, const std::string& served, const fuse_options& options,
                             fuse_folder::control& control);

}  // namespace gpufs::testing
