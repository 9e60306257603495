#include "interposer/loader.hpp"

#include <link.h>

#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "interposer/driver.hpp"
#include "interposer/unknown_names.hpp"

extern "C" {
void* (*gdev_loader_dlopen)(const char* name, int flags);
void* (*gdev_loader_dlmopen)(Lmid_t space, const char* name, int flags);
void* (*gdev_loader_dlsym)(void* handle, const char* name);

extern const char gdev_entries_begin[];
extern const char gdev_entries_end[];
}

namespace gdev {

namespace {

std::atomic<std::size_t> driver_bypasses;

template <typename Function>
void find_loader_function(Function*& place, const char* name) noexcept {
  // dlvsym() is the only one of these functions that the interposer does not export. Each glibc has
  // them under these versions: a lookup that fails would allocate its error, and an allocator may
  // call dlsym().
  void* const found =
      dlvsym(RTLD_NEXT, name, std::string_view(name) == "dlmopen" ? "GLIBC_2.3.4" : "GLIBC_2.2.5");
  if (found == nullptr) {
    std::fprintf(stderr, "gdev: the C library has no %s of a known version\n", name);
    std::abort();
  }
  // Threads that come here at the same time store the same address.
  __atomic_store_n(&place, reinterpret_cast<Function*>(found), __ATOMIC_RELEASE);
}

/** Tells whether a name is that of the driver's library, with or without folder and version. */
bool names_driver(const char* name) noexcept {
  if (name == nullptr) {
    return false;
  }
  std::string_view file(name);
  file.remove_prefix(file.find_last_of('/') + 1);  // npos + 1 is 0
  constexpr std::string_view driver = "libcuda.so";
  return file.starts_with(driver) &&
         file.find_first_not_of(".0123456789", driver.size()) == std::string_view::npos;
}

/** Returns the loader's record of this library. */
const link_map* own_link_map() noexcept {
  Dl_info info;
  link_map* own = nullptr;
  if (dladdr1(gdev_entries_begin, &info, reinterpret_cast<void**>(&own), RTLD_DL_LINKMAP) == 0) {
    return nullptr;
  }
  return own;
}

bool is_own_handle(void* handle) noexcept {
  link_map* map = nullptr;
  return handle != RTLD_DEFAULT && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 &&
         map == own_link_map();
}

bool is_entry(const void* address) noexcept {
  return address >= gdev_entries_begin && address < gdev_entries_end;
}

const char* replacement(const char* name, int flags) noexcept {
  if (!names_driver(name)) {
    return name;
  }
  // By its soname this library is always loaded. To a program the driver must look missing where it
  // is, and not loaded (RTLD_NOLOAD) before it is.
  if (*driver_path() == '\0' || ((flags & RTLD_NOLOAD) != 0 && driver_if_loaded() == nullptr)) {
    return "libcuda.so.1 (gdev found no driver)";
  }
  return "libcuda.so.1";
}

}  // namespace

void load_loader_functions() noexcept {
  if (__atomic_load_n(&gdev_loader_dlsym, __ATOMIC_ACQUIRE) == nullptr) {
    find_loader_function(gdev_loader_dlopen, "dlopen");
    find_loader_function(gdev_loader_dlmopen, "dlmopen");
    find_loader_function(gdev_loader_dlsym, "dlsym");  // last: the others are set when it is
  }
}

std::size_t bypasses() noexcept { return driver_bypasses.load(std::memory_order_relaxed); }

}  // namespace gdev

// --- Called by entries.S ---

extern "C" {

/** Returns the name that dlopen() opens instead of the one it was given. */
__attribute__((visibility("hidden"))) const char* gdev_name_to_open(const char* name, int flags) {
  gdev::load_loader_functions();
  return gdev::replacement(name, flags);
}

/** Returns the name that dlmopen() opens instead of the one it was given. */
__attribute__((visibility("hidden"))) const char* gdev_name_to_open_in(Lmid_t space,
                                                                       const char* name,
                                                                       int flags) {
  gdev::load_loader_functions();
  if (space == LM_ID_BASE) {
    return gdev::replacement(name, flags);
  }
  if (gdev::names_driver(name)) {
    gdev::driver_bypasses.fetch_add(1, std::memory_order_relaxed);
  }
  return name;
}

struct gdev_symbol {
  void* address;
  std::size_t is_found;  // 0: the loader is to look for it
};

/** Answers dlsym() for the driver's functions. */
__attribute__((visibility("hidden"))) gdev_symbol gdev_find_symbol(void* handle, const char* name) {
  gdev::load_loader_functions();
  if (name == nullptr || name[0] != 'c' || name[1] != 'u' ||
      std::isupper(static_cast<unsigned char>(name[2])) == 0 || handle == RTLD_NEXT) {
    return {nullptr, 0};
  }
  void* const found = gdev_loader_dlsym(handle, name);
  if (found == nullptr && gdev::is_own_handle(handle)) {
    void* const address = gdev::driver_symbol(name);
    if (address != nullptr) {
      gdev::unknown_names().add(name);
    }
    return {address, address != nullptr ? std::size_t{1} : 0};
  }
  const int id = gdev::is_entry(found) ? gdev::find_function(name) : -1;
  const gdev::loaded_driver* const loaded = id >= 0 ? gdev::load_driver() : nullptr;
  if (loaded != nullptr && loaded->handle != nullptr && loaded->functions[id] == nullptr) {
    // The driver is older than the table. driver_symbol() leaves an error for dlerror().
    return {gdev::driver_symbol(name), 1};
  }
  return {nullptr, 0};
}
}
