// gpufs::error as Python's exceptions.
#pragma once

namespace gpufs::python {

// With a path: OSError with errno and filename, which Python turns into FileNotFoundError and so
// on. Without one: a ValueError for EINVAL (an argument that cannot be), else OSError.
void translate_errors();

}  // namespace gpufs::python
