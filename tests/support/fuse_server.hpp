// The server of a fuse_folder.
#pragma once

#include <string>

#include "support/fuse_folder.hpp"

namespace gpufs::testing {

// Answers the kernel's requests on `device`, an open and mounted /dev/fuse, from the folder
// `served`. Returns when the connection ends. A file that another client has removed on the server
// is stale, as with NFS: ESTALE.
[[noreturn]] void serve_fuse(int device, const std::string& served, const fuse_options& options,
                             fuse_folder::control& control);

}  // namespace gpufs::testing
