#include "interposer/driver.hpp"

#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "interposer/loader.hpp"
#include "interposer/wrappers.hpp"

extern "C" {
/** Where the entries jump to (entries.S): zero until the first call of each. */
__attribute__((visibility("hidden"))) std::atomic<void*> gdev_entries[gdev::function_count];
}

namespace gdev {

std::array<void*, function_count> driver_functions;

namespace {

constexpr std::string_view library = "/libcuda.so.1";

/** Where drivers lie, in the order in which the loader would find them on most machines. */
constexpr std::array<std::string_view, 8> usual_folders{
    "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu",  "/usr/lib64",       "/lib64",
    "/usr/local/nvidia/lib64",   "/run/opengl-driver/lib", "/usr/lib/wsl/lib", "/usr/lib",
};

// pthread_once() and not std::call_once(): glibc runs it again in a child that was forked while a
// thread of its parent was inside.
pthread_once_t path_once = PTHREAD_ONCE_INIT;
pthread_once_t load_once = PTHREAD_ONCE_INIT;

char path[PATH_MAX];
void* handle;

struct place {
  const void* address;
  int id;
};

/** All functions that the driver has, sorted by address. Several names may share one address. */
std::array<place, function_count> by_address;
std::size_t known;

struct file_id {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const file_id&) const = default;
};

/** Returns which file a path leads to, or zeros. */
file_id file_at(const char* name) noexcept {
  struct stat status{};
  return stat(name, &status) == 0 ? file_id{status.st_dev, status.st_ino} : file_id{};
}

file_id own_file() noexcept {
  Dl_info info;
  // Any address of this library.
  return dladdr(static_cast<const void*>(&path_once), &info) != 0 ? file_at(info.dli_fname)
                                                                  : file_id{};
}

/** Stores the path of the driver in a folder, if there is one and it is not this library. */
bool try_folder(std::string_view folder, const file_id& own) noexcept {
  if (folder.empty() || folder.size() + library.size() >= sizeof path) {
    return false;
  }
  char candidate[PATH_MAX];
  std::memcpy(candidate, folder.data(), folder.size());
  std::memcpy(candidate + folder.size(), library.data(), library.size());
  candidate[folder.size() + library.size()] = '\0';
  const file_id found = file_at(candidate);
  if (found == file_id{} || found == own) {
    return false;
  }
  std::strcpy(path, candidate);
  return true;
}

void find_driver() noexcept {
  const file_id own = own_file();
  if (const char* given = std::getenv("GDEV_DRIVER"); given != nullptr && *given != '\0') {
    const file_id chosen = file_at(given);
    if (std::strlen(given) < sizeof path && chosen != file_id{} && chosen != own) {
      std::strcpy(path, given);
    }
    return;
  }
  const char* searched = std::getenv("LD_LIBRARY_PATH");
  std::string_view rest = searched == nullptr ? "" : searched;
  while (!rest.empty()) {
    const std::size_t end = rest.find_first_of(":;");
    if (try_folder(rest.substr(0, end), own)) {
      return;
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  static_cast<void>(
      std::any_of(usual_folders.begin(), usual_folders.end(),
                  [&own](std::string_view folder) { return try_folder(folder, own); }));
}

void load_driver() noexcept {
  load_loader_functions();
  const char* const name = driver_path();
  if (*name == '\0') {
    return;
  }
  // The path keeps the loader from taking this library, which has the same soname, for the driver.
  handle = gdev_loader_dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "gdev: %s\n", dlerror());
    return;
  }
  for (int id = 0; id < function_count; ++id) {
    void* const address = gdev_loader_dlsym(handle, functions[id].name);
    driver_functions[id] = address;
    if (address != nullptr) {
      by_address[known++] = {address, id};
    }
  }
  static_cast<void>(dlerror());  // of the names that it lacks
  std::sort(by_address.begin(), by_address.begin() + known,
            [](const place& one, const place& other) {
              return one.address != other.address ? one.address < other.address : one.id < other.id;
            });
}

void load() noexcept { pthread_once(&load_once, load_driver); }

}  // namespace

const char* driver_path() noexcept {
  pthread_once(&path_once, find_driver);
  return path;
}

void* driver_function(function_id id) noexcept {
  load();
  return driver_functions[id];
}

void* driver_symbol(const char* name) noexcept {
  load();
  return handle == nullptr ? nullptr : gdev_loader_dlsym(handle, name);
}

int function_at(const void* address, std::string_view written) noexcept {
  load();
  const place* const end = by_address.data() + known;
  const place* one =
      std::lower_bound(static_cast<const place*>(by_address.data()), end, address,
                       [](const place& entry, const void* other) { return entry.address < other; });
  int first = -1;
  for (; one != end && one->address == address; ++one) {
    if (written_name(functions[one->id].name) == written) {
      return one->id;
    }
    first = first < 0 ? one->id : first;
  }
  return first;
}

}  // namespace gdev

/** Called by entries.S at the first call of a function: returns where it goes from now on. */
extern "C" __attribute__((visibility("hidden"))) void* gdev_resolve(gdev::function_id id) {
  void* target = gdev::driver_function(id);
  if (target == nullptr) {
    target = gdev::missing_function();
  } else if (void* const wrapper = gdev::wrapper_of(id); wrapper != nullptr) {
    target = wrapper;
  }
  // Release: a wrapper reads driver_functions. The entries' plain load is an acquire on x86-64.
  gdev_entries[id].store(target, std::memory_order_release);
  return target;
}
