#include "fsx/fsx_group.hpp"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "api/session.hpp"

namespace gpufs::testing {
namespace {

// What stands where two strings differ first, for messages; empty when they are the same.
std::string difference(const std::string& actual, const std::string& expected) {
  if (actual == expected) return {};
  const std::size_t both = std::min(actual.size(), expected.size());
  const auto at = static_cast<std::size_t>(
      std::mismatch(actual.begin(), actual.begin() + static_cast<std::ptrdiff_t>(both),
                    expected.begin())
          .first -
      actual.begin());
  const auto byte = [&](const std::string& s) {
    return at < s.size() ? std::to_string(static_cast<unsigned char>(s[at]))
                         : std::string("the end");
  };
  return "byte " + std::to_string(at) + " is " + byte(actual) + ", not " + byte(expected) +
         "; sizes " + std::to_string(actual.size()) + ", " + std::to_string(expected.size());
}

}  // namespace

// ---- host_steps

std::uint64_t host_steps::add(std::function<void()> step) {
  const std::lock_guard lock(mutex_);
  steps_.push_back(std::move(step));
  return steps_.size() - 1;
}

int host_steps::run(const char* number, std::size_t bytes) {
  std::uint64_t which = ~std::uint64_t{0};
  if (bytes == sizeof which) std::memcpy(&which, number, sizeof which);
  std::function<void()> step;
  {
    const std::lock_guard lock(mutex_);
    if (which < steps_.size()) step = std::exchange(steps_[which], nullptr);
    if (!step) failures_.emplace_back("a message that is no step's number, or came twice");
  }
  if (!step) return 0;
  try {
    step();
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex_);
    failures_.emplace_back("step " + std::to_string(which) + ": " + e.what());
  }
  return 0;
}

std::vector<std::string> host_steps::take_failures() {
  const std::lock_guard lock(mutex_);
  for (const auto& step : steps_) {
    if (step) failures_.emplace_back("a step was not made");
  }
  steps_.clear();
  return std::exchange(failures_, {});
}

// ---- choices

fsx_group::fsx_group(const fsx_world& world, std::uint64_t seed, std::uint32_t number,
                     std::vector<std::size_t> ranges)
    : world_(world), random_(seed), number_(number), ranges_(std::move(ranges)) {}

std::string fsx_group::fresh(std::uint64_t bytes) {
  std::string s(bytes, '\0');
  for (std::uint64_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random_();
    std::memcpy(s.data() + i, &word, std::min<std::uint64_t>(8, bytes - i));
  }
  return s;
}

// An offset in a file of this size, or past its end: around pages of the mount and of the host, and
// around the end.
std::uint64_t fsx_group::place(std::uint64_t size) {
  const std::uint64_t page = chance(3) ? host_page_bytes : world_.page_bytes;
  std::uint64_t at = chance(8) ? size + below(3 * page) : below(size + 1);
  if (chance(2)) at = at / page * page + below(5);
  else if (chance(4)) at = size + below(5);
  if (at >= 2 && chance(2)) at -= 2;
  return std::min(at, size_max);
}

std::uint64_t fsx_group::length() {
  const std::uint64_t page = world_.page_bytes;
  switch (below(5)) {
    case 0: return 1 + below(8);
    case 1: return page - 2 + below(5);
    case 2: return 1 + below(3 * page);
    default: return 1 + below(200);
  }
}

std::uint64_t fsx_group::new_size(std::uint64_t size) {
  return chance(8) ? 0 : chance(8) ? below(12 * world_.page_bytes) % size_max : place(size);
}

// ---- the model

std::string fsx_group::name_of(int name) const {
  return "own-" + std::to_string(number_) + "-" + std::to_string(name);
}
// Another spelling is another record of the same file.
std::string fsx_group::path_of(int name) {
  return world_.files.path((chance(3) ? "./" : "") + name_of(name));
}

bool fsx_group::is_written(const file& f) { return std::ranges::any_of(f.open, writes); }
// Whether a descriptor sees at once what is written to the file.
bool fsx_group::shares(const file& f, const descriptor& d) const {
  return is_written(f) && !d.unknown;
}

fsx_group::descriptor* fsx_group::pick(file& f, bool (*fits)(const descriptor&)) {
  const std::size_t first = f.open.empty() ? 0 : below(f.open.size());
  for (std::size_t i = 0; i < f.open.size(); ++i) {
    descriptor& d = f.open[(first + i) % f.open.size()];
    if (fits(d)) return &d;
  }
  return nullptr;
}

int fsx_group::free_register() const {
  for (int r = 0; r < first_map; ++r) {
    const auto uses = [r](const file& f) {
      return std::ranges::find(f.open, r, &descriptor::in_register) != f.open.end();
    };
    if (std::ranges::none_of(files_, uses)) return r;
  }
  return -1;
}

fsx_group::file* fsx_group::named(int name) {
  const auto found = std::ranges::find(files_, name, &file::name);
  return found == files_.end() ? nullptr : &*found;
}

// Files that nobody can reach any more.
void fsx_group::forget_gone() {
  std::erase_if(files_, [](const file& f) { return f.name < 0 && f.open.empty(); });
  if (std::ranges::none_of(files_, [](const file& f) { return f.name < 0; })) blocked_.clear();
}

// ---- calls

device_call fsx_group::call_of(action what, int from) const {
  device_call c{what};
  c.from = from;
  return c;
}

void fsx_group::plan_host(std::function<void()> step, std::string what) {
  const std::uint64_t number = world_.steps.add(std::move(step));
  device_call c = call_of(action::send, sink_register);
  c.memory = input_->size();
  c.bytes = sizeof number;
  input_->append(reinterpret_cast<const char*>(&number), sizeof number);
  calls_.add(c, sizeof number, std::move(what));
}

// What lies past the end of the host's file is zeros that nobody wrote.
void fsx_group::expect_on_host(const file& f, std::uint64_t at, std::uint64_t bytes,
                               const std::string& after) {
  if (f.name < 0 || at >= f.content.size()) return;
  plan_host(
      [&files = world_.files, name = name_of(f.name), at, expected = f.content.substr(at, bytes),
       after] {
        std::string there = files.content(name);
        there = at < there.size() ? there.substr(at, expected.size()) : std::string();
        there.resize(expected.size(), '\0');
        if (there != expected)
          throw std::runtime_error(name + " from " + std::to_string(at) + " after " + after + ": " +
                                   difference(there, expected));
      },
      "compare a part of " + name_of(f.name));
}

void fsx_group::expect_all_on_host(const file& f, const std::string& after) {
  if (f.name < 0) return;
  plan_host(
      [&files = world_.files, name = name_of(f.name), expected = f.content, after] {
        const std::string there = files.content(name);
        if (there != expected)
          throw std::runtime_error(name + " after " + after + ": " + difference(there, expected));
      },
      "compare " + name_of(f.name));
}

void fsx_group::open(int name, kind how) {
  file* f = named(name);
  const int to = free_register();
  if (to < 0 || std::ranges::count(blocked_, name) != 0) return;
  if (f != nullptr && f->open.size() == descriptors_max) return;
  const bool is_open = f != nullptr && !f->open.empty();
  if (is_open && (how == kind::once || f->open.front().how == kind::once)) return;
  static constexpr int flags_of[] = {O_RDONLY, O_RDWR, O_WRONLY, O_RDWR | O_APPEND,
                                     O_WRONLY | O_GWRONCE};
  device_call c{action::open};
  c.to = to;
  c.bytes = 0644;
  c.flags = flags_of[static_cast<int>(how)];
  c.memory = add_string(*input_, path_of(name));
  if (how != kind::read) {
    if (!chance(3)) c.flags |= O_CREAT;
    // A file that was just made may be taken for one that was just removed, and that this launch
    // had emptied (service/file_table.hpp).
    if (chance(4) && (f == nullptr || !f->was_made)) c.flags |= O_TRUNC;
    if (chance(8)) c.flags |= O_CREAT | O_EXCL;
  }
  const std::string what = "open " + name_of(name) + " with " + std::to_string(c.flags);
  if (f == nullptr && (c.flags & O_CREAT) == 0) return calls_.add(c, -ENOENT, what);
  if (f != nullptr && (c.flags & O_EXCL) != 0) return calls_.add(c, -EEXIST, what);
  calls_.add_open(c, what);
  const bool empties = (c.flags & O_TRUNC) != 0;
  if (f == nullptr) {
    f = &files_.emplace_back();
    f->name = name;
    f->was_made = !empties;
  }
  descriptor d{to, how, {}, false, is_written(*f)};
  if (how == kind::read) {
    // It may be the same descriptor as one that is open.
    for (const descriptor& other : f->open) {
      d.unknown = d.unknown || other.unknown;
      d.joined = d.joined || other.joined;
      if (other.seen.size() > d.seen.size()) d.seen = other.seen;
    }
  } else if (!is_written(*f)) {
    for (descriptor& other : f->open) other.unknown = true;
  }
  if (empties && !f->was_emptied) f->content.clear();
  f->was_emptied = f->was_emptied || empties;
  f->once_end = how == kind::once ? place(f->content.size()) : 0;
  f->open.push_back(std::move(d));
}

void fsx_group::close(file& f, std::size_t which) {
  calls_.add(call_of(action::close, f.open[which].in_register), 0, "close of " + name_of(f.name));
  const bool wrote = is_written(f);
  f.open.erase(f.open.begin() + static_cast<std::ptrdiff_t>(which));
  if (wrote && !is_written(f)) expect_all_on_host(f, "the last close");
  forget_gone();
}

// By the mount; also while the files are open.
void fsx_group::change_names(int name) {
  file* const f = named(name);
  if (f == nullptr || !blocked_.empty()) return;
  if (chance(2)) {
    device_call c{action::unlink};
    c.memory = add_string(*input_, path_of(name));
    calls_.add(c, 0, "unlink " + name_of(name));
    f->name = -1;
  } else {
    const auto other = static_cast<int>(
        (static_cast<std::uint64_t>(name) + 1 + below(names_count - 1)) % names_count);
    device_call c{action::rename};
    c.memory = add_string(*input_, path_of(name));
    c.bytes = add_string(*input_, path_of(other));
    calls_.add(c, 0, "rename " + name_of(name) + " to " + name_of(other));
    if (file* const replaced = named(other)) replaced->name = -1;
    f->name = other;
  }
  forget_gone();
}

// By a program that knows nothing of the mount.
void fsx_group::change_outside(int name) {
  file* f = named(name);
  file_world& files = world_.files;
  const std::string text = name_of(name);
  if (std::ranges::count(blocked_, name) != 0) return;
  if (f == nullptr || chance(4)) {
    // Another file in its place, or none.
    if (f != nullptr) {
      f->name = -1;
      if (!f->open.empty()) blocked_.push_back(name);
    }
    if (f != nullptr && chance(3)) {
      plan_host([&files, text] { files.remove(text); }, "outside: remove " + text);
    } else {
      file made;
      made.name = name;
      made.was_made = true;
      made.content = fresh(new_size(0) + below(5) * world_.page_bytes);
      plan_host(
          [&files, text, content = made.content] { files.replace(text, content); },
          "outside: replace " + text + " by " + std::to_string(made.content.size()) + " bytes");
      files_.push_back(std::move(made));
    }
    return forget_gone();
  }
  // In place; whose bytes are the last would be a matter of time if the mount wrote it, too.
  if (is_written(*f)) return;
  const std::string before = f->content;
  if (chance(3)) {
    f->content.resize(new_size(f->content.size()), '\0');
    plan_host([&files, text, size = f->content.size()] { files.truncate(text, size); },
              "outside: truncate " + text + " from " + std::to_string(before.size()) + " to " +
                  std::to_string(f->content.size()));
  } else {
    const std::uint64_t at = place(f->content.size());
    const std::string bytes = fresh(length());
    if (f->content.size() < at + bytes.size()) f->content.resize(at + bytes.size(), '\0');
    f->content.replace(at, bytes.size(), bytes);
    plan_host([&files, text, at, bytes] { files.write_at(text, at, bytes); },
              "outside: write " + text + " from " + std::to_string(at) + " to " +
                  std::to_string(at + bytes.size()));
  }
  for (descriptor& d : f->open) {
    if (d.seen.empty()) d.seen.push_back(before);
    d.seen.push_back(f->content);
  }
}

void fsx_group::use_open(file& f) {
  if (chance(12)) return close(f, below(f.open.size()));
  if (chance(3)) {
    if (descriptor* const reader = pick(f, reads)) {
      switch (below(5)) {
        case 0: return read_view(f, *reader);
        case 1: return read_map(f, *reader);
        default: return read(f, *reader);
      }
    }
  }
  descriptor* const writer = pick(f, writes);
  if (writer == nullptr || chance(12))
    return chance(3) ? advise(f, f.open.front()) : status(f, f.open.front());
  switch (below(8)) {
    case 0: return truncate(f, *writer);
    case 1: return store(f, *writer);
    case 2: return chance(4) ? sync(f, *writer) : advise(f, *writer);
    default: return write(f, *writer);
  }
}

void fsx_group::use(int name) {
  file* const f = named(name);
  if (f == nullptr || f->open.empty()) {
    if (chance(4)) return change_outside(name);
    if (chance(12)) return change_names(name);
    return open(name);
  }
  if (chance(15)) return change_outside(name);
  if (chance(40)) return change_names(name);
  if (chance(8)) return open(name);
  use_open(*f);
}

// Only the group's ranges, while others use theirs.
void fsx_group::use_shared(fsx_shared_file& shared) {
  const std::size_t range = ranges_[below(ranges_.size())];
  const std::uint64_t begin = shared.begins[range];
  const bool is_last = range + 1 == shared.begins.size();
  const std::uint64_t end = is_last ? shared.content.size() : shared.begins[range + 1];
  const std::uint64_t at = begin + below(end - begin + 1);
  std::uint64_t bytes = std::min(length(), is_last ? size_max : end - at);
  const std::string what = shared.name + " at " + std::to_string(at);
  if (is_last && chance(4)) {
    device_call c = call_of(action::truncate, shared_register);
    c.offset = static_cast<std::int64_t>(begin + below(2 * (end - begin) + 200));
    if (c.offset > static_cast<std::int64_t>(2 * size_max)) return;
    calls_.add(c, 0, "truncate " + shared.name + " to " + std::to_string(c.offset));
    shared.content.resize(static_cast<std::size_t>(c.offset), '\0');
    return;
  }
  if (bytes == 0 || at + bytes > 2 * size_max) return;
  switch (below(5)) {
    case 0: {
      device_call c = call_of(chance(2) ? action::sync : action::advise, shared_register);
      c.offset = static_cast<std::int64_t>(at);
      c.bytes = bytes;
      c.flags = POSIX_FADV_DONTNEED;
      if (c.what == action::sync && !chance(8)) return;
      return calls_.add(c, 0, (c.what == action::sync ? "sync " : "advise ") + what);
    }
    case 1: {
      if (at >= end) return;
      bytes = std::min({bytes, end - at, world_.page_bytes - at % world_.page_bytes});
      device_call c = call_of(action::map_write, shared_register);
      c.to = shared_map;
      c.offset = static_cast<std::int64_t>(at);
      c.bytes = bytes;
      calls_.add(c, static_cast<std::int64_t>(bytes), "map " + what);
      const std::string stored = fresh(bytes);
      c = call_of(action::poke, shared_map);
      c.bytes = bytes;
      c.memory = input_->size();
      *input_ += stored;
      calls_.add(c, static_cast<std::int64_t>(bytes), "store in " + what);
      shared.content.replace(at, bytes, stored);
      c = call_of(action::unmap_write, shared_map);
      c.bytes = bytes;
      c.flags = shared_register;
      return calls_.add(c, 0, "unmap " + what);
    }
    case 2: {
      const std::string stored = fresh(bytes);
      calls_.add_write(shared_register, at, stored, *input_, below(16), "write to " + what);
      if (shared.content.size() < at + bytes) shared.content.resize(at + bytes, '\0');
      shared.content.replace(at, bytes, stored);
      return;
    }
    default: {
      device_call c = call_of(action::read, shared_register);
      c.offset = static_cast<std::int64_t>(at);
      (void)calls_.add_read(
          c, bytes, at < end ? shared.content.substr(at, std::min(bytes, end - at)) : std::string(),
          *output_bytes_, below(16), "read " + what);
    }
  }
}

// A file that is closed, and was not changed for long.
void fsx_group::look_change_and_look(int name) {
  for (int i = 0; i < 4; ++i) {
    file* const f = named(name);
    if (f == nullptr || is_written(*f) || (i == 0 && !f->open.empty())) return;
    if (i == 2) {
      change_outside(name);
      continue;
    }
    open(name, kind::read);
    if (f->open.empty()) return;
    read(*f, f->open.front());
    close(*f, 0);
  }
}

const script& fsx_group::next(fsx_shared_file& shared, const fsx_launch& how, std::string& input,
                              std::uint64_t& output_bytes) {
  calls_.clear();
  input_ = &input;
  output_bytes_ = &output_bytes;
  for (file& f : files_) f.was_made = f.was_emptied = false;
  device_call set{action::set};
  set.to = sink_register;
  set.offset = world_.sink;
  calls_.add(set, 0, "set");
  device_call opens{action::open};
  opens.to = shared_register;
  opens.flags = O_RDWR;
  opens.memory = add_string(input, world_.files.path(shared.name));
  calls_.add_open(opens, "open " + shared.name);
  for (int name = 0; how.begins_settled && name < names_count; ++name) look_change_and_look(name);
  while (calls_.size() < world_.calls) {
    if (chance(4)) use_shared(shared);
    else use(static_cast<int>(below(names_count)));
    // One that has no name any more is used on.
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i].name < 0 && chance(2)) {
        use_open(files_[i]);
        break;
      }
    }
  }
  calls_.add(call_of(action::close, shared_register), 0, "close " + shared.name);
  while (how.closes_all) {
    const auto f = std::ranges::find_if(files_, [](const file& one) { return !one.open.empty(); });
    if (f == files_.end()) break;
    close(*f, 0);
  }
  return calls_.calls();
}

void fsx_group::check(const std::vector<outcome>& outcomes, const std::string& output) const {
  calls_.check("group " + std::to_string(number_), outcomes, output);
}

void fsx_group::check_files() const {
  for (int name = 0; name < names_count; ++name) {
    const auto f = std::ranges::find(files_, name, &file::name);
    ASSERT_EQ(world_.files.exists(name_of(name)), f != files_.end()) << name_of(name);
    if (f != files_.end())
      expect_same_bytes(world_.files.content(name_of(name)), f->content, name_of(name));
  }
}

}  // namespace gpufs::testing
