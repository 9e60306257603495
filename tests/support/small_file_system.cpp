#include "support/small_file_system.hpp"

#include <errno.h>
#include <sys/mount.h>

#include <cstring>

#include "support/child_process.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {

void in_small_file_system(std::uint64_t bytes,
                          const std::function<void(const std::string& folder)>& body) {
  const temporary_folder place;
  const std::string folder = place / "small";
  std::filesystem::create_directory(folder);
  in_child([&] {
    enter_own_namespace();
    const std::string options = "size=" + std::to_string(bytes);
    if (::mount("gpufs-test", folder.c_str(), "tmpfs", 0, options.c_str()) != 0)
      throw not_possible(std::string("no file system of one's own here: ") + std::strerror(errno));
    body(folder);
  });
}

}  // namespace gpufs::testing
