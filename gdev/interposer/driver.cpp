#include "interposer/driver.hpp"

#include <limits.h>
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

namespace {

constexpr std::string_view library = "/libcuda.so.1";

/** Where drivers lie, in the order in which the loader would find them on most machines. */
constexpr std::array<std::string_view, 8> usual_folders{
    "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu",  "/usr/lib64",       "/lib64",
    "/usr/local/nvidia/lib64",   "/run/opengl-driver/lib", "/usr/lib/wsl/lib", "/usr/lib",
};

std::atomic<const char*> path;
std::atomic<const loaded_driver*> driver;
thread_local bool is_loading = false;

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
  return dladdr(static_cast<const void*>(&path), &info) != 0 ? file_at(info.dli_fname) : file_id{};
}

using path_buffer = std::array<char, PATH_MAX>;

/** Stores the path of the driver in a folder, if there is one and it is not this library. */
bool try_folder(std::string_view folder, const file_id& own, path_buffer& found) noexcept {
  if (folder.empty() || folder.size() + library.size() >= found.size()) {
    return false;
  }
  char* const end = std::copy(folder.begin(), folder.end(), found.begin());
  *std::copy(library.begin(), library.end(), end) = '\0';
  const file_id file = file_at(found.data());
  return file != file_id{} && file != own;
}

/** Stores the driver's path. Returns false if there is none. */
bool find_driver(path_buffer& found) noexcept {
  const file_id own = own_file();
  if (const char* given = std::getenv("GDEV_DRIVER"); given != nullptr && *given != '\0') {
    const file_id chosen = file_at(given);
    if (std::strlen(given) >= found.size() || chosen == file_id{} || chosen == own) {
      return false;
    }
    std::strcpy(found.data(), given);
    return true;
  }
  const char* searched = std::getenv("LD_LIBRARY_PATH");
  std::string_view rest = searched == nullptr ? "" : searched;
  while (!rest.empty()) {
    const std::size_t end = rest.find_first_of(":;");
    if (try_folder(rest.substr(0, end), own, found)) {
      return true;
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return std::any_of(usual_folders.begin(), usual_folders.end(),
                     [&](std::string_view folder) { return try_folder(folder, own, found); });
}

/** Fills in a new driver. */
void fill(loaded_driver& made) noexcept {
  load_loader_functions();
  const char* const name = driver_path();
  if (*name == '\0') {
    return;
  }
  // The path keeps the loader from taking this library, which has the same soname, for the driver.
  made.handle = gdev_loader_dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (made.handle == nullptr) {
    std::fprintf(stderr, "gdev: %s\n", dlerror());
    return;
  }
  for (int id = 0; id < function_count; ++id) {
    void* const address = gdev_loader_dlsym(made.handle, functions[id].name);
    made.functions[id] = address;
    if (address != nullptr) {
      made.by_address[made.known++] = {address, id};
    }
  }
  static_cast<void>(dlerror());  // of the names that it lacks
  using place = loaded_driver::place;
  std::sort(made.by_address.begin(), made.by_address.begin() + made.known,
            [](const place& one, const place& other) {
              return one.address != other.address ? one.address < other.address : one.id < other.id;
            });
}

}  // namespace

const char* driver_path() noexcept {
  const char* known = path.load(std::memory_order_acquire);  // with the exchange below
  if (known != nullptr) {
    return known;
  }
  path_buffer buffer;
  char* const found = strdup(find_driver(buffer) ? buffer.data() : "");
  if (path.compare_exchange_strong(known, found, std::memory_order_acq_rel)) {
    return found;
  }
  std::free(found);  // another thread was sooner
  return known;
}

const loaded_driver* driver_if_loaded() noexcept {
  return driver.load(std::memory_order_acquire);  // with the exchange below
}

const loaded_driver* load_driver() noexcept {
  const loaded_driver* known = driver_if_loaded();
  if (known != nullptr || is_loading) {
    return known;
  }
  is_loading = true;
  auto* const made = new loaded_driver;
  fill(*made);
  is_loading = false;
  // Threads that load it at the same time find the same; the loader counts how often.
  if (driver.compare_exchange_strong(known, made, std::memory_order_acq_rel)) {
    return made;
  }
  delete made;
  return known;
}

void* driver_symbol(const char* name) noexcept {
  const loaded_driver* const loaded = load_driver();
  return loaded == nullptr || loaded->handle == nullptr ? nullptr
                                                        : gdev_loader_dlsym(loaded->handle, name);
}

int function_at(const void* address, std::string_view written) noexcept {
  using place = loaded_driver::place;
  const loaded_driver* const loaded = load_driver();
  if (loaded == nullptr) {
    return -1;
  }
  const place* const end = loaded->by_address.data() + loaded->known;
  const place* one =
      std::lower_bound(loaded->by_address.data(), end, address,
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
  const gdev::loaded_driver* const loaded = gdev::load_driver();
  if (loaded == nullptr) {
    return gdev::missing_function();  // called by the driver's initialization: not remembered
  }
  void* target = loaded->functions[id];
  if (target == nullptr) {
    target = gdev::missing_function();
  } else if (void* const wrapper = gdev::wrapper_of(id); wrapper != nullptr) {
    target = wrapper;
  }
  // Release: a wrapper reads the driver. The entries' plain load is an acquire on x86-64.
  gdev_entries[id].store(target, std::memory_order_release);
  return target;
}
