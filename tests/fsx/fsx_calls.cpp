// Single calls of the fsx test on an open file, and what each must give.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "api/session.hpp"
#include "fsx/fsx_group.hpp"

namespace gpufs::testing {

void fsx_group::write_at(file& f, descriptor& d, std::uint64_t at, const std::string& bytes) {
  calls_.add_write(d.in_register, at, bytes, *input_, below(16),
                   "write to " + name_of(f.name) + " at " + std::to_string(at));
  if (f.content.size() < at + bytes.size()) f.content.resize(at + bytes.size(), '\0');
  f.content.replace(at, bytes.size(), bytes);
}

void fsx_group::write(file& f, descriptor& d) {
  const std::uint64_t at = d.how == kind::append ? f.content.size()
                           : d.how == kind::once ? f.once_end + (chance(3) ? 0 : below(100))
                                                 : place(f.content.size());
  const std::string bytes = fresh(length());
  if (at + bytes.size() > 2 * size_max) return;
  write_at(f, d, at, bytes);
  f.once_end = at + bytes.size();
}

void fsx_group::truncate(file& f, descriptor& d) {
  if (d.how == kind::once) return;
  device_call c = call_of(action::truncate, d.in_register);
  const std::uint64_t size = new_size(f.content.size());
  c.offset = static_cast<std::int64_t>(size);
  calls_.add(c, 0,
             "truncate " + name_of(f.name) + " from " + std::to_string(f.content.size()) + " to " +
                 std::to_string(size));
  f.content.resize(size, '\0');
}

void fsx_group::sync(file& f, descriptor& d) {
  calls_.add(call_of(action::sync, d.in_register), 0, "sync " + name_of(f.name));
  if (chance(2)) expect_all_on_host(f, "gfsync");
}

void fsx_group::advise(file& f, descriptor& d) {
  device_call c = call_of(action::advise, d.in_register);
  const std::uint64_t at = place(f.content.size());
  c.offset = static_cast<std::int64_t>(at);
  c.bytes = chance(4) ? 0 : length();
  c.flags = chance(2) && reads(d) ? POSIX_FADV_WILLNEED : POSIX_FADV_DONTNEED;
  calls_.add(
      c, 0,
      "advise " + std::to_string(c.flags) + " of " + name_of(f.name) + " at " + std::to_string(at));
  // Others may be writing a part of it.
  if (c.flags == POSIX_FADV_DONTNEED && shares(f, d) && world_.is_alone)
    expect_on_host(f, at, c.bytes == 0 ? std::string::npos : c.bytes, "POSIX_FADV_DONTNEED");
}

void fsx_group::status(file& f, descriptor& d) {
  if (d.unknown || !d.seen.empty()) return;
  device_call c = call_of(action::status, d.in_register);
  c.memory = (*output_bytes_ + 15) / 16 * 16;
  *output_bytes_ = c.memory + sizeof(file_status);
  expectation e;
  e.what = "status of " + name_of(f.name);
  e.judge = [at = c.memory, size = f.content.size()](const outcome&, const std::string& output) {
    file_status s{};
    std::memcpy(&s, output.data() + at, sizeof s);
    EXPECT_EQ(s.size, size);
  };
  (void)calls_.add(c, std::move(e));
}

// Through a pointer.
void fsx_group::store(file& f, descriptor& d) {
  if (!reads(d) || f.content.empty()) return;
  const std::uint64_t at = std::min<std::uint64_t>(place(f.content.size()), f.content.size() - 1);
  const std::uint64_t bytes =
      std::min({length(), world_.page_bytes - at % world_.page_bytes, f.content.size() - at});
  device_call c = call_of(action::map_write, d.in_register);
  c.to = first_map;
  c.offset = static_cast<std::int64_t>(at);
  c.bytes = bytes;
  const std::string what = name_of(f.name) + " mapped to write at " + std::to_string(at);
  calls_.add(c, static_cast<std::int64_t>(bytes), what);
  const auto end = [&](action how) {
    device_call e = call_of(how, first_map);
    e.bytes = bytes;
    e.flags = d.in_register;
    calls_.add(e, 0, (how == action::msync ? "msync of " : "unmap of ") + what);
  };
  for (std::uint64_t times = 1 + below(3); times != 0; --times) {
    const std::uint64_t skip = below(bytes);
    const std::string stored = fresh(1 + below(bytes - skip));
    c = call_of(action::poke, first_map);
    c.offset = static_cast<std::int64_t>(skip);
    c.bytes = stored.size();
    c.memory = input_->size();
    *input_ += stored;
    calls_.add(c, static_cast<std::int64_t>(stored.size()), "store in " + what);
    f.content.replace(at + skip, stored.size(), stored);
    if (chance(2)) {
      c = call_of(action::peek, first_map);
      (void)calls_.add_read(c, bytes, f.content.substr(at, bytes), *output_bytes_, 0,
                            "look at " + what);
    }
    if (chance(3)) {
      end(action::msync);
      expect_on_host(f, at + skip, stored.size(), "gmsync");
    }
  }
  end(action::unmap_write);
}

// A read of one that may give more than one answer.
void fsx_group::expect_some_content(const descriptor& d, std::uint64_t at, std::uint64_t bytes,
                                    device_call c, std::string what) {
  c.bytes = bytes;
  c.memory = *output_bytes_;
  *output_bytes_ += bytes;
  expectation e;
  e.most = static_cast<std::int64_t>(bytes);
  e.what = std::move(what);
  if (!d.unknown) {
    e.judge = [at, memory = c.memory, seen = d.seen, joined = d.joined](const outcome& o,
                                                                        const std::string& output) {
      for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(o.result); ++i) {
        const char byte = output[memory + i];
        // Past the end there are zeros, and they may be read directly: Linux puts them up to the
        // end of the folio that the file ends in. It may be larger than a page.
        const auto is_this = [&](const std::string& s) {
          return byte == (at + i < s.size() ? s[at + i] : '\0');
        };
        if (std::ranges::any_of(seen, is_this) || (joined && byte == '\0')) continue;
        ADD_FAILURE() << "byte " << at + i << " is "
                      << static_cast<unsigned>(static_cast<unsigned char>(output[memory + i]))
                      << ", which it never was since the open";
        return;
      }
    };
  }
  (void)calls_.add(c, std::move(e));
}

void fsx_group::read(file& f, descriptor& d) {
  const std::uint64_t at = place(f.content.size());
  const std::uint64_t bytes = chance(10) ? below(8 * world_.page_bytes) : length();
  // Pieces for each member, or all of it together.
  device_call c = call_of(chance(4) ? action::read_each : action::read, d.in_register);
  c.offset = static_cast<std::int64_t>(at);
  if (c.what == action::read_each)
    c.flags = static_cast<std::int32_t>(1 + below(world_.page_bytes + 50));
  const std::string what = "read of " + name_of(f.name) + " at " + std::to_string(at);
  if (d.unknown || !d.seen.empty()) {
    c.what = action::read;
    return expect_some_content(d, at, bytes, c, what);
  }
  (void)calls_.add_read(c, bytes,
                        at < f.content.size() ? f.content.substr(at, bytes) : std::string(),
                        *output_bytes_, below(16), what);
}

void fsx_group::read_view(file& f, descriptor& d) {
  if (d.unknown || !d.seen.empty()) return;
  const std::uint64_t at = place(f.content.size()) / 8 * 8;
  const std::uint64_t words = at < f.content.size() ? (f.content.size() - at) / 8 : 0;
  device_call c = call_of(action::view, d.in_register);
  c.offset = static_cast<std::int64_t>(at);
  *output_bytes_ = (*output_bytes_ + 7) / 8 * 8;
  const std::uint64_t count = std::min<std::uint64_t>(words, length() / 8);
  c.bytes = count;
  c.memory = *output_bytes_;
  *output_bytes_ += count * 8;
  expectation e;
  e.least = e.most = static_cast<std::int64_t>(words);
  e.what = "view of " + name_of(f.name) + " at " + std::to_string(at);
  e.memory = c.memory;
  e.bytes = f.content.substr(std::min<std::uint64_t>(at, f.content.size()), count * 8);
  e.judge = [](const outcome& o, const std::string&) {
    EXPECT_EQ(o.value, 0) << "the view's error";
  };
  (void)calls_.add(c, std::move(e));
}

void fsx_group::read_map(file& f, descriptor& d) {
  if (d.unknown || !d.seen.empty()) return;
  const std::uint64_t at = place(f.content.size());
  const std::uint64_t asked = length();
  const std::uint64_t left = at < f.content.size() ? f.content.size() - at : 0;
  const std::uint64_t bytes = std::min({asked, world_.page_bytes - at % world_.page_bytes, left});
  device_call c = call_of(action::map, d.in_register);
  c.to = first_map + 1;
  c.offset = static_cast<std::int64_t>(at);
  c.bytes = asked;
  const std::string what = name_of(f.name) + " mapped at " + std::to_string(at);
  calls_.add(c, static_cast<std::int64_t>(bytes), what);
  if (bytes == 0) return;
  const auto look = [&] {
    (void)calls_.add_read(call_of(action::peek, first_map + 1), bytes, f.content.substr(at, bytes),
                          *output_bytes_, 0, "look at " + what);
  };
  look();
  descriptor* const writer = pick(f, [](const descriptor& w) { return w.how == kind::read_write; });
  if (writer != nullptr && shares(f, d) && chance(2)) {
    write_at(f, *writer, at + below(bytes), fresh(length()));
    look();
  }
  c = call_of(action::unmap, first_map + 1);
  c.flags = static_cast<std::int32_t>(below(2));
  calls_.add(c, 0, "unmap of " + what);
}

}  // namespace gpufs::testing
