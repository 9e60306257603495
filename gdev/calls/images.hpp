/** The images of kernels that a handle has loaded, found by their bytes. Thread-safe. */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace gdev::calls {

struct loaded_kernel {
  CUfunction function = nullptr;
  /** Empty: the driver does not say. */
  std::optional<std::size_t> parameters;
};

class images {
 public:
  /** Finds a kernel; loads its image if it is new. As glaunch(). The context is current. */
  [[nodiscard]] int find(std::string_view image, const char* entry, loaded_kernel& found) noexcept;
  /** Unloads all. No work uses them any more; the context is current. */
  void unload() noexcept;

 private:
  struct image {
    CUmodule module = nullptr;
    std::map<std::string, loaded_kernel, std::less<>> kernels;
  };

  std::mutex mutex_;  // guards all below; held while an image is loaded
  std::map<std::string, image, std::less<>> all_;
};

}  // namespace gdev::calls
