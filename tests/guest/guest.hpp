// A mount is a guest in its process: what belongs to the program stays as it was. The settings in
// which that is tested, and work that uses all of a mount.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "api/session.hpp"
#include "gpufs/gpufs.hpp"
#include "support/child_process.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {

// Mounts with the backend that programs get.
struct guest_setting {
  unsigned workers =
      2;  // from four on openers have descriptors of their own, and writes go by mappings
  bool maps_files = true;
  bool has_root = false;
};
inline void PrintTo(const guest_setting& s, std::ostream* out) {
  *out << s.workers << "_workers" << (s.maps_files ? "" : "_without_mappings")
       << (s.has_root ? "_below_a_root" : "");
}
inline std::vector<guest_setting> guest_settings() {
  return {{2, true, false}, {4, true, false}, {4, false, false}, {2, true, true}};
}
// Where little depends on them.
inline std::vector<guest_setting> few_guest_settings() {
  return {{2, true, false}, {4, false, false}};
}

class guest : public ::testing::TestWithParam<guest_setting> {
 protected:
  mount_options options() const;
  // As a kernel is to name a file of the folder.
  std::string path(const std::string& name) const {
    return GetParam().has_root ? name : folder_ / name;
  }
  // Files that are read by their open, by reads and by mappings; files that are made, written,
  // synced, cut, renamed and removed; a sink. Fails the test when something is not as it should be.
  // `round` makes what is written new.
  void use(mount& fs, unsigned round = 0) const;
  std::string content(const std::string& name) const;

  const temporary_folder folder_;
};

}  // namespace gpufs::testing
