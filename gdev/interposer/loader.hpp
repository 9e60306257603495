/** The dynamic loader's functions; the interposer exports functions of their names (entries.S). */
#pragma once

#include <dlfcn.h>

#include <cstddef>

extern "C" {
// Set before their first use by load_loader_functions(). entries.S jumps through them.
extern void* (*gdev_loader_dlopen)(const char* name, int flags);
extern void* (*gdev_loader_dlmopen)(Lmid_t space, const char* name, int flags);
extern void* (*gdev_loader_dlsym)(void* handle, const char* name);
}

namespace gdev {

/** Finds the loader's functions. Cheap after the first call; thread-safe. */
void load_loader_functions() noexcept;

/** Returns how many times a program loaded the driver past gdev, into a name space of its own. */
[[nodiscard]] std::size_t bypasses() noexcept;

}  // namespace gdev
