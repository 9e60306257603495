// The power goes at every call of the backend, and between any two. Scripts of eight steps of a
// small alphabet, a share of all that there are, and all of few steps, are run by one group; the
// backend says at each point what the disk may have (support/durable_backend.hpp), and the model
// what was promised (promised_files.hpp). A promise names single bytes, the size and the names of a
// folder, and the disk's sectors are independent of each other. So it is enough to look at each
// value of each sector once: that covers all their combinations.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "api/session.hpp"
#include "gpufs/error.hpp"
#include "power/promised_files.hpp"
#include "power/script_space.hpp"
#include "support/durable_backend.hpp"
#include "support/seeds.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

constexpr unsigned steps_of_a_script = 8;

// ---- Which scripts there are

constexpr char contents_steps[] = "oOwpabetgmdsFcU";

// The steps, on a file of three sectors:
//   o O w p  opens it to read and write; the same and emptied; O_GWRONCE; O_APPEND
//   a b e    writes 100 bytes at 200; 700 at 300; 300 at 1800, past the end
//   t g      truncates it to 250 bytes; to 2500
//   m        changes 40 bytes at 100 through a mapping, with gmsync
//   d        gfadvise, POSIX_FADV_DONTNEED
//   s F      gfsync; the same, and the host's sync fails
//   c U      closes it; ends the mount and makes another
// Left out: a step twice in a row; writes of different bytes in a row but in one order; a sync
// right after an open; a second F; what would be a shorter script.
class contents_rule {
 public:
  std::optional<script_space::state> operator()(script_space::state packed, char step,
                                                unsigned left) const {
    state s = unpack(packed);
    const std::string writes = "abe";
    const std::size_t write = writes.find(step);
    const auto last_was = [&](const char* some) {
      return s.last != 0 && std::string(some).find(s.last) != npos;
    };
    const std::size_t opens = std::string("oOwp").find(step);
    if (step == s.last || (s.kind == closed) != (opens != npos)) return std::nullopt;
    if (opens != npos) {
      if (left == 0 && step != 'O') return std::nullopt;
      constexpr unsigned kinds[] = {both, both, once, append};
      s.kind = kinds[opens];
      s.written = 0;
    } else if (write != npos) {
      if (s.kind == once && (s.written >> write & 1) != 0) return std::nullopt;
      if (s.kind != append && last_was("abe") && writes.find(s.last) > write) return std::nullopt;
      if (s.kind == once) s.written |= 1u << write;
    } else if (step == 't' || step == 'g') {
      if (s.kind == once) return std::nullopt;
    } else if (step == 'm') {
      if (s.kind != both) return std::nullopt;
    } else if (step == 'd') {
      if (last_was("sFoOwp")) return std::nullopt;
    } else if (step == 's') {
      if (last_was("owp")) return std::nullopt;
    } else if (step == 'F') {
      if (s.failed != 0) return std::nullopt;
      s.failed = 1;
    } else {
      if (step == 'U' && left == 0) return std::nullopt;
      s.kind = closed;
    }
    s.last = step;
    return pack(s);
  }

 private:
  static constexpr std::size_t npos = std::string::npos;
  enum : unsigned { closed, both, once, append };
  struct state {
    unsigned kind = closed, written = 0, failed = 0;
    char last = 0;
  };
  static state unpack(script_space::state p) {
    return {p & 3, p >> 2 & 7, p >> 5 & 1, static_cast<char>(p >> 6)};
  }
  static script_space::state pack(const state& s) {
    return s.kind | s.written << 2 | s.failed << 5 | static_cast<unsigned>(s.last) << 6;
  }
};

constexpr char names_steps[] = "nNkaescUrRxXuvDE";

// The steps, on d/f, which is there, d/n and e/n:
//   n N k    opens d/n, which it makes; the same, and empties it; opens d/f
//   a e      writes 100 bytes at 200; 300 at 1800
//   s c U    gfsync; gclose; ends the mount and makes another
//   r R      renames d/n to d/f; d/f to d/n
//   x X      renames d/n to e/n; e/n to d/f
//   u v      removes d/f; d/n
//   D E      mount::sync_folder of d; of e
// Left out: a step twice in a row; what names nothing; the sync of a folder that has not changed;
// what would be a shorter script.
class names_rule {
 public:
  std::optional<script_space::state> operator()(script_space::state packed, char step,
                                                unsigned left) const {
    state s = unpack(packed);
    if (step == s.last) return std::nullopt;
    const auto needs = [&](unsigned names) { return (s.absent & names) == 0; };
    const auto make = [&](unsigned names) { s.absent &= ~names; };
    const auto remove = [&](unsigned names) { s.absent |= names; };
    const auto touch = [&](unsigned folders) { s.changed |= folders; };
    switch (step) {
      case 'n':
      case 'N':
      case 'k':
        if (s.open != 0 || left == 0 || (step == 'k' && !needs(df))) return std::nullopt;
        if (step != 'k' && !needs(dn)) touch(d);
        if (step != 'k') make(dn);
        s.open = 1;
        break;
      case 'a':
      case 'e':
      case 's':
        if (s.open == 0 || (step == 's' && (s.last == 'n' || s.last == 'k'))) return std::nullopt;
        break;
      case 'c':
      case 'U':
        if ((step == 'c' && s.open == 0) || (step == 'U' && left == 0)) return std::nullopt;
        s.open = 0;
        break;
      case 'r':
      case 'x':
      case 'v':
        if (!needs(dn)) return std::nullopt;
        remove(dn);
        make(step == 'r' ? df : step == 'x' ? en : 0);
        touch(step == 'x' ? d | e : d);
        break;
      case 'R':
      case 'u':
        if (!needs(df)) return std::nullopt;
        remove(df);
        make(step == 'R' ? dn : 0);
        touch(d);
        break;
      case 'X':
        if (!needs(en)) return std::nullopt;
        remove(en);
        make(df);
        touch(d | e);
        break;
      default: {
        const unsigned folder = step == 'D' ? d : e;
        if ((s.changed & folder) == 0) return std::nullopt;
        s.changed &= ~folder;
      }
    }
    s.last = step;
    return pack(s);
  }

 private:
  static constexpr unsigned df = 1, dn = 2, en = 4;  // names
  static constexpr unsigned d = 1, e = 2;            // folders
  struct state {
    unsigned open = 0, absent = dn | en, changed = 0;
    char last = 0;
  };
  // The first state is 0.
  static state unpack(script_space::state p) {
    return {p & 1, (p >> 1 & 7) ^ (dn | en), p >> 4 & 3, static_cast<char>(p >> 6)};
  }
  static script_space::state pack(const state& s) {
    return s.open | (s.absent ^ (dn | en)) << 1 | s.changed << 4 |
           static_cast<unsigned>(s.last) << 6;
  }
};

// ---- Running one

struct setting {
  group_kind kind;
  unsigned workers;
  unsigned cache_pages;
  bool last_sync_fails = false;  // that of the unmount at the end
};

// Every setting meets every kind of script.
setting setting_of(std::uint64_t number) {
  constexpr unsigned workers[] = {1, 2, 4};  // four: with openers
  constexpr unsigned pages[] = {8, 64};      // eight: pages are written back for want of frames
  return {static_cast<group_kind>(number % 3), workers[number / 3 % 3], pages[number / 9 % 2],
          number % 4 == 0};
}

class script_run {
 public:
  script_run(const setting& how, std::uint64_t seed)
      : how_(how), io_(std::make_shared<durable_backend>(seed)) {
    std::string content;
    for (unsigned i = 0; i < 3 * durable_backend::sector_bytes; ++i)
      content += static_cast<char>('A' + i % 26);
    model_.add_folder("d");
    model_.add_folder("e");
    io_->make_folder("e");
    io_->create("d/f", content);
    model_.add("d/f", io_->inode("d/f"), content);
    io_->watch([this](const durable_backend::disk& possible) { check(possible); });
    mount_again();
  }
  ~script_run() {
    calls_.reset();
    fs_.reset();
  }

  // Empty, or what is wrong.
  std::string run(const std::string& steps, bool of_names) {
    for (number_ = 0; number_ < steps.size(); ++number_) {
      if (of_names) make_step_of_names(steps[number_]);
      else make_step(steps[number_], "d/f");
      check(io_->possible_disk());
      if (const std::string why = failure(); !why.empty())
        return "after step " + std::to_string(number_ + 1) + " of " + steps + ": " + why;
    }
    if (how_.last_sync_fails && fd_ >= 0) {
      io_->fail_next_sync();
      model([&] { file().lose(); });
    }
    end_mount();
    check(io_->possible_disk());
    return failure();
  }

 private:
  static constexpr std::uint64_t page_bytes = 512;

  void mount_again() {
    calls_.reset();
    mount_options options = base_options();
    options.backend = io_;
    options.page_bytes = page_bytes;
    options.cache_bytes = how_.cache_pages * page_bytes;
    options.workers = how_.workers;
    options.open_files = 8;
    options.channel_slots = 4;
    options.write_bytes = 8192;
    options.cpu_threads = 1;
    options.reclaim_timeout = options.request_timeout;
    fs_ = std::make_unique<mount>(options);
    calls_ = std::make_unique<session>(*fs_, how_.kind);
  }

  // What unmount() promises: what is open for writing is on the disk, or it throws.
  void end_mount() {
    int thrown = 0;
    try {
      fs_->unmount();
    } catch (const error& e) {
      thrown = e.code().value();
    }
    const std::lock_guard lock(mutex_);
    expect(thrown, fd_ >= 0 && file().lost() ? EIO : 0);
    if (fd_ >= 0) {
      file().sync();
      file().close();
    }
    fd_ = -1;
  }

  void check(const durable_backend::disk& possible) {
    const std::lock_guard lock(mutex_);
    const std::string why = model_.refute(possible);
    if (!why.empty() && failure_.empty()) failure_ = why;
  }
  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // With the mutex.
  void expect(std::int64_t result, std::int64_t expected) {
    if (result == expected || !failure_.empty()) return;
    failure_ = "the result is " + std::to_string(result) + ", not " + std::to_string(expected);
  }
  promised_file& file() { return model_.at(open_); }

  // `what` of the model, before a call or after it.
  template <class Change>
  void model(const Change& what) {
    const std::lock_guard lock(mutex_);
    what();
  }

  void open(const std::string& path, int flags) {
    const bool is_new = !model_.exists(path);
    model([&] {
      if (is_new) model_.may_create(path);
      else if ((flags & O_TRUNC) != 0) model_.at(model_.inode(path)).may_truncate(0);
    });
    fd_ = calls_->open(path, flags);
    const std::uint64_t inode = io_->exists(path) ? io_->inode(path) : 0;
    model([&] {
      if (is_new) model_.create(path, inode);
      open_ = inode;
      appends_ = (flags & O_APPEND) != 0;
      if (fd_ < 0) expect(fd_, 0);
      else if (model_.inode(path) != inode) failure_ = "another file was opened";
      else if ((flags & O_TRUNC) != 0) file().truncate(0);
    });
  }

  std::string bytes_to_write(std::uint64_t count) const {
    std::string bytes;
    for (std::uint64_t i = 0; i < count; ++i) bytes += static_cast<char>('a' + 3 * number_ + i % 3);
    return bytes;
  }

  void write(std::uint64_t at, std::uint64_t count) {
    const std::string bytes = bytes_to_write(count);
    if (appends_) at = file().size();
    model([&] { file().may_write(at, bytes); });
    const std::int64_t result = calls_->write(fd_, bytes, static_cast<std::int64_t>(at));
    model([&] {
      expect(result, static_cast<std::int64_t>(count));
      file().write(at, bytes);
    });
  }

  void truncate(std::uint64_t size) {
    model([&] { file().may_truncate(size); });
    const std::int32_t result = calls_->truncate(fd_, static_cast<std::int64_t>(size));
    model([&] {
      expect(result, 0);
      file().truncate(size);
    });
  }

  // Through a mapping, of which the file may have a part only, or nothing.
  void store() {
    constexpr std::uint64_t at = 100, count = 40;
    const std::uint64_t size = file().size();
    const std::uint64_t there = size <= at ? 0 : std::min(size - at, count);
    const std::string bytes = bytes_to_write(there);
    model([&] { file().may_write(at, bytes); });
    const map_answer mapped = calls_->map_write(fd_, at, count);
    model([&] { expect(mapped.result, static_cast<std::int64_t>(there)); });
    if (mapped.result <= 0) return;
    const std::int64_t poked = calls_->poke(mapped.pointer, bytes);
    const std::int32_t synced = calls_->msync(fd_, mapped.pointer, there);
    model([&] {
      expect(poked, static_cast<std::int64_t>(there));
      expect(synced, 0);
      file().write(at, bytes);
    });
    const std::string content = io_->content(path_);
    const std::int32_t ended = calls_->unmap_write(fd_, mapped.pointer, there);
    model([&] {
      expect(ended, 0);
      if (content.size() < at + there || content.compare(at, there, bytes) != 0)
        failure_ = "gmsync wrote nothing";
    });
  }

  void sync(bool fails) {
    if (fails) io_->fail_next_sync();
    const std::int32_t result = calls_->sync(fd_);
    model([&] {
      if (fails) file().lose();
      expect(result, file().lost() ? -EIO : 0);
      file().sync();
    });
  }

  // The host has all, as others see it.
  void check_host() {
    if (!io_->exists(path_) || io_->inode(path_) != open_) return;
    const std::string content = io_->content(path_);
    model([&] {
      const std::string why = file().refute_host(content);
      if (!why.empty() && failure_.empty()) failure_ = why;
    });
  }

  void close() {
    const std::int32_t result = calls_->close(fd_);
    model([&] { expect(result, file().lost() ? -EIO : 0); });
    check_host();
    model([&] { file().close(); });
    fd_ = -1;
  }

  void make_step(char step, const std::string& path) {
    switch (step) {
      case 'o': return open(path_ = path, O_RDWR);
      case 'O': return open(path_ = path, O_RDWR | O_TRUNC);
      case 'w': return open(path_ = path, O_WRONLY | O_GWRONCE);
      case 'p': return open(path_ = path, O_WRONLY | O_APPEND);
      case 'a': return write(200, 100);
      case 'b': return write(300, 700);
      case 'e': return write(1800, 300);
      case 't': return truncate(250);
      case 'g': return truncate(2500);
      case 'm': return store();
      case 'd': {
        const std::int32_t result = calls_->advise(fd_, 0, 0, POSIX_FADV_DONTNEED);
        model([&] { expect(result, 0); });
        return check_host();
      }
      case 's': return sync(false);
      case 'F': return sync(true);
      case 'c': return close();
      default: end_mount(); return mount_again();
    }
  }

  void rename(const std::string& path, const std::string& new_path) {
    model([&] { model_.may_rename(path, new_path); });
    const std::int32_t result = calls_->rename(path, new_path);
    model([&] { expect(result, 0); });
  }
  void unlink(const std::string& path) {
    model([&] { model_.may_unlink(path); });
    const std::int32_t result = calls_->unlink(path);
    model([&] { expect(result, 0); });
  }
  void sync_folder(const std::string& folder) {
    fs_->sync_folder(folder);
    model([&] { model_.sync_folder(folder); });
  }

  void make_step_of_names(char step) {
    switch (step) {
      case 'n': return open(path_ = "d/n", O_RDWR | O_CREAT);
      case 'N': return open(path_ = "d/n", O_RDWR | O_CREAT | O_TRUNC);
      case 'k': return open(path_ = "d/f", O_RDWR);
      case 'r': return rename("d/n", "d/f");
      case 'R': return rename("d/f", "d/n");
      case 'x': return rename("d/n", "e/n");
      case 'X': return rename("e/n", "d/f");
      case 'u': return unlink("d/f");
      case 'v': return unlink("d/n");
      case 'D': return sync_folder("d");
      case 'E': return sync_folder("e");
      default: make_step(step, path_);
    }
  }

  const setting how_;
  const std::shared_ptr<durable_backend> io_;
  std::mutex mutex_;  // guards the model, which the service's threads look at, and failure_
  promised_files model_;
  std::string failure_;
  std::unique_ptr<mount> fs_;
  std::unique_ptr<session> calls_;
  std::size_t number_ = 0;  // of the step
  std::int32_t fd_ = -1;
  std::uint64_t open_ = 0;  // the file's inode
  std::string path_;
  bool appends_ = false;
};

void run_scripts(script_space space, bool of_names, std::uint64_t usual) {
  work_budget budget(usual);
  while (budget.begun() < space.count() && budget.next()) {
    const std::string script = space.scattered(budget.seed());
    const std::string why =
        script_run(setting_of(budget.seed()), budget.seed()).run(script, of_names);
    if (!why.empty()) ADD_FAILURE() << script << ": " << why << "\n" << budget.replay();
    budget.covers("of " + std::to_string(space.count()) + " scripts", 1);
  }
}

TEST(power_loss, keeps_the_contents_that_were_promised) {
  run_scripts({contents_steps, steps_of_a_script, contents_rule()}, false,
              is_sanitized ? 100 : 1000);
}

TEST(power_loss, keeps_the_names_that_were_promised) {
  run_scripts({names_steps, steps_of_a_script, names_rule()}, true, is_sanitized ? 60 : 600);
}

// All scripts of up to some steps. GPUFS_TEST_SCRIPT_STEPS says how many; each more takes about
// eight times as long.
TEST(power_loss, keeps_what_was_promised_in_all_short_scripts) {
  const char* const wanted = std::getenv("GPUFS_TEST_SCRIPT_STEPS");
  const unsigned most = wanted != nullptr ? static_cast<unsigned>(std::strtoul(wanted, nullptr, 10))
                        : is_sanitized    ? 2
                                          : 3;
  std::uint64_t scripts = 0;
  for (unsigned steps = 1; steps <= most; ++steps) {
    for (const bool of_names : {false, true}) {
      script_space space = of_names ? script_space(names_steps, steps, names_rule())
                                    : script_space(contents_steps, steps, contents_rule());
      for (std::uint64_t number = 0; number < space.count(); ++number) {
        const std::string script = space.script(number);
        const std::string why = script_run(setting_of(number), number).run(script, of_names);
        ASSERT_EQ(why, "") << script;
      }
      scripts += space.count();
    }
  }
  std::printf("covered: power_loss: all %llu scripts of up to %u steps\n",
              static_cast<unsigned long long>(scripts), most);
}

// The steps that docs/api.md names, and what d/f is at each point.
class replacement_run {
 public:
  explicit replacement_run(const setting& how)
      : old_(2000, 'o'), new_(20 * durable_backend::sector_bytes + 100, 'n'),
        io_(std::make_shared<durable_backend>()) {
    io_->create("d/f", old_);
    const durable_backend::disk now = io_->possible_disk();
    files_[io_->inode("d/f")] = now.files[0];
    io_->watch([this](const durable_backend::disk& possible) { look(possible); });
    mount_options options = base_options();
    options.backend = io_;
    options.page_bytes = durable_backend::sector_bytes;
    options.cache_bytes = how.cache_pages * options.page_bytes;
    options.workers = how.workers;
    options.reclaim_timeout = options.request_timeout;
    mount fs(options);
    {
      session calls(fs, how.kind);
      const std::int32_t fd = calls.open("d/part", O_RDWR | O_CREAT | O_EXCL);
      EXPECT_EQ(calls.write(fd, new_, 0), static_cast<std::int64_t>(new_.size()));
      EXPECT_EQ(calls.sync(fd), 0);
      EXPECT_EQ(calls.close(fd), 0);
      EXPECT_EQ(calls.rename("d/part", "d/f"), 0);
    }
    EXPECT_EQ(seen_, "on") << "old, or new, which is not on the disk yet";
    seen_.clear();
    fs.sync_folder("d");
    EXPECT_EQ(seen_, "n");
    fs.unmount();
    io_->watch(nullptr);
  }

 private:
  static bool is(const durable_backend::file_on_disk& file, const std::string& content) {
    for (const std::uint64_t size : file.sizes) {
      if (size != content.size()) return false;
    }
    for (std::uint64_t i = 0; i < content.size(); ++i) {
      for (const auto& sector : file.sectors[i / durable_backend::sector_bytes]) {
        if (sector[i % durable_backend::sector_bytes] != content[i]) return false;
      }
    }
    return true;
  }
  void look(const durable_backend::disk& possible) {
    for (const auto& file : possible.files) files_[file.inode] = file;
    for (const auto& names : possible.folders.at("d")) {
      const auto found = names.find("d/f");
      const char what = found == names.end()              ? '-'
                        : is(files_[found->second], old_) ? 'o'
                        : is(files_[found->second], new_) ? 'n'
                                                          : '?';
      if (seen_.find(what) == std::string::npos) seen_ += what;
    }
  }

  const std::string old_, new_;
  const std::shared_ptr<durable_backend> io_;
  std::map<std::uint64_t, durable_backend::file_on_disk> files_;
  std::string seen_;  // what d/f may have been: old, new, neither, none
};

TEST(power_loss, replaces_a_file_as_a_whole_or_not_at_all) {
  for (std::uint64_t number = 0; number < 18; ++number) {
    SCOPED_TRACE("setting " + std::to_string(number));
    replacement_run run(setting_of(number));
  }
}

}  // namespace
}  // namespace gpufs::testing
