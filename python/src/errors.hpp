// Translates gpufs::error to Python's exceptions.
#pragma once

namespace gpufs::python {

// With a path: OSError with errno and filename, which Python turns into FileNotFoundError and so
// on. Without a path: ValueError for EINVAL (an invalid argument), else OSError.
void translate_errors();

}  // namespace gpufs::python
