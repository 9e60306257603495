// Paths that a kernel names in a mount with a root: whatever they are, nothing outside of it is
// opened, made, changed or removed.
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "fuzz/input.hpp"
#include "fuzz/targets.hpp"
#include "gpufs/backend.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

namespace fs = std::filesystem;

// A folder to serve, with links that lead everywhere, and one beside it that is not to be reached.
class guarded_tree {
 public:
  guarded_tree() {
    fs::create_directory(outside());
    std::ofstream(outside() + "/secret") << "secret";
    outside_before_ = look(outside());
  }

  void begin() {
    fs::remove_all(root());
    fs::create_directories(root() + "/d/e");
    std::ofstream(root() + "/f") << "inside";
    std::ofstream(root() + "/d/g") << "inside";
    for (const auto& [name, target] :
         std::map<std::string, std::string>{{"l", outside()},
                                            {"m", outside() + "/secret"},
                                            {"n", "../outside/secret"},
                                            {"d/o", "../../outside"},
                                            {"p", "f"},
                                            {"q", "q"},
                                            {"r", "../outside/new"},
                                            {"s", "/"}})
      fs::create_symlink(target, root() + "/" + name);
    io_ = make_posix_backend({.root = root()});
  }
  backend& io() { return *io_; }
  // What is outside is as it was, also what is in its files.
  void check() const {
    require(look(outside()) == outside_before_, "something outside of the root has changed");
  }
  bool is_outside(const file_identity& f) const {
    return inodes_.contains(f.inode) && f.device == device_;
  }

 private:
  std::string root() const { return folder_ / "root"; }
  std::string outside() const { return folder_ / "outside"; }
  std::map<std::string, std::string> look(const std::string& folder) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      struct stat s{};
      require(lstat(entry.path().c_str(), &s) == 0, "the test's own stat");
      device_ = s.st_dev;
      inodes_.insert(s.st_ino);
      std::ifstream file(entry.path());
      all[entry.path()] = {std::istreambuf_iterator<char>(file), {}};
    }
    return all;
  }

  const temporary_folder folder_;
  mutable std::set<std::uint64_t> inodes_;  // of what is outside
  mutable std::uint64_t device_ = 0;
  std::map<std::string, std::string> outside_before_;
  std::shared_ptr<backend> io_;
};

// Parts of paths, so that what a fuzzer makes up leads somewhere; and so that a mistake could not
// harm this machine.
constexpr const char* parts[] = {"/", "..", ".", "d", "e", "f", "g",   "l",  "m",  "n",
                                 "o", "p",  "q", "r", "s", "t", "/..", "/.", "//", "secret"};

// A letter is a part, and anything else is what it is, as long as only a file is looked for.
std::string path_of(const std::string& input, bool only_looks) {
  std::string path;
  for (const char c : input) {
    if (c >= 'A' && c <= 'T') path += parts[c - 'A'];
    else if (only_looks || c == '/' || c == '.') path += c;
  }
  return path;
}

}  // namespace

// Lines, each an operation and its path or paths.
void fuzz_paths(std::span<const std::uint8_t> input) {
  static guarded_tree tree;
  fuzz_input in(input);
  tree.begin();
  for (int i = 0; i < 20 && in.left() != 0; ++i) {
    const std::string line = in.line();
    if (line.empty()) continue;
    const bool only_looks = line[0] == '<';
    const std::size_t space = std::min(line.find(' ', 1), line.size());
    const std::string path = path_of(line.substr(1, space - 1), only_looks);
    const std::string other = space < line.size() ? path_of(line.substr(space + 1), false) : "";
    std::unique_ptr<backend_file> file;
    int status = 0;
    switch (line[0]) {
      case '<': status = tree.io().open(path, space < line.size(), file); break;
      case '-': status = tree.io().unlink(path); break;
      case '=': status = tree.io().rename(path, other); break;
      case '/': status = tree.io().sync_folder(path); break;
      default:
        open_how how;
        how.create = line[0] != '+';
        how.exclusive = line[0] == '!';
        how.no_follow = line[0] == '~';
        how.mode = 0600;
        status = tree.io().open_to_change(path, how, file);
    }
    require(status <= 0 && status >= -4095, "a result that is no error number");
    if (file != nullptr) {
      file_identity identity;
      require(status == 0 && file->identify(identity) == 0, "a file that is not open");
      require(!tree.is_outside(identity), "a file outside of the root");
      if (line[0] != '<') (void)file->write("changed", 7, 0);
    }
    tree.check();
  }
}

}  // namespace gpufs::testing
