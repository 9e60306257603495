/** How the simulated driver defines the functions that it exports, and finds them by name. */
#pragma once

#include <cuda.h>

#include <string_view>

namespace gdev::simulated {

/** Makes a function known to cuGetProcAddress(). */
struct registration {
  registration(const char* name, void* address);
};

/** Returns the function of this exported name, or null. */
[[nodiscard]] void* find_export(std::string_view name) noexcept;

}  // namespace gdev::simulated

#define GDEV_NAME(name) GDEV_QUOTED(name)
#define GDEV_QUOTED(name) #name

/**
 * Begins the definition of a function of the driver: GDEV_EXPORT(cuInit, unsigned flags) { ... }.
 *
 * cuda.h's macros apply: cuMemAlloc is exported as cuMemAlloc_v2.
 */
#define GDEV_EXPORT(name, ...) GDEV_EXPORT_AS(name, __VA_ARGS__)
#define GDEV_EXPORT_AS(name, ...)                                                               \
  extern "C" __attribute__((visibility("default"))) CUresult name(__VA_ARGS__);                 \
  static const gdev::simulated::registration registration_of_##name{                            \
      GDEV_NAME(name), reinterpret_cast<void*>(static_cast<CUresult (*)(__VA_ARGS__)>(&name))}; \
  CUresult name(__VA_ARGS__)
