#include "api/random_script.hpp"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "api/session.hpp"

namespace gpufs::testing {
namespace {

// Room for an answer, with a border around it that nobody may write.
std::uint64_t take_output(std::uint64_t& output_bytes, std::uint64_t bytes,
                          std::uint64_t misalignment) {
  constexpr std::uint64_t border = 16;
  const std::uint64_t at = (output_bytes + border + 15) / 16 * 16 + misalignment;
  output_bytes = at + bytes + border;
  return at;
}

// Zero when out of range, as a view gives it.
std::uint64_t word_at(const std::string& content, std::uint64_t at) {
  std::uint64_t word = 0;
  if (at + 8 <= content.size()) std::memcpy(&word, content.data() + at, 8);
  return word;
}

}  // namespace

// ---- making scripts

void random_group::plan_set(int to, std::int64_t value) {
  device_call c{action::set};
  c.to = to;
  c.offset = value;
  plan(c);
}

void random_group::plan_open(const std::vector<model_file>& files, const script_limits& limits,
                             std::string& input) {
  const auto to = static_cast<int>(below(descriptors));
  if (guess_[to] >= 0) return plan_close(to);
  const std::size_t file = below(files.size());
  device_call c{action::open};
  c.to = to;
  c.memory = add_string(input, files[file].path);
  if (below(20) == 0) c.flags = limits.read_only && below(2) == 0 ? O_RDWR : O_DIRECTORY;
  if (below(4) == 0) c.flags |= O_CLOEXEC;
  plan(c, file);
  guess_[to] = files[file].what == model_file::kind::regular ? static_cast<int>(file) : -1;
}

// The register is emptied: closing twice could close what another group holds.
void random_group::plan_close(int from) {
  device_call c{action::close};
  c.from = from;
  plan(c);
  plan_set(from, -1);
  guess_[from] = -1;
}

void random_group::plan_unmap(int from) {
  device_call c{action::unmap};
  c.flags = static_cast<std::int32_t>(below(2));
  c.from = descriptors + from;
  plan(c);
  plan_set(descriptors + from, 0);
  guess_room_[from] = 0;
}

// Anywhere in the file, with a preference for its end and for the borders of pages.
std::int64_t random_group::some_offset(const std::vector<model_file>& files,
                                       const script_limits& limits, int from) {
  const std::uint64_t size =
      guess_[from] < 0 ? 10000 : files[static_cast<std::size_t>(guess_[from])].content.size();
  std::uint64_t at = below(size + 1);
  if (below(3) == 0) at = at / limits.page_bytes * limits.page_bytes + below(3);
  if (below(8) == 0) at = size + below(100);
  if (below(8) == 0 && size > 20) at = size - below(20);
  if (below(50) == 0) return -static_cast<std::int64_t>(at) - 1;
  return static_cast<std::int64_t>(at);
}

void random_group::plan_map(const std::vector<model_file>& files, const script_limits& limits) {
  if (limits.mappings == 0) return;
  const auto to = static_cast<int>(below(limits.mappings));
  if (guess_room_[to] != 0) return plan_unmap(to);
  device_call c{action::map};
  c.from = static_cast<int>(below(descriptors));
  c.to = descriptors + to;
  c.offset = some_offset(files, limits, c.from);
  c.bytes = below(2) == 0 ? 1 + below(limits.page_bytes) : ~std::uint64_t{0};
  plan(c);
  guess_room_[to] =
      c.offset < 0 ? 1
                   : limits.page_bytes - static_cast<std::uint64_t>(c.offset) % limits.page_bytes;
}

void random_group::plan_read(const std::vector<model_file>& files, const script_limits& limits,
                             std::uint64_t& output_bytes, action what) {
  device_call c{what};
  c.from = static_cast<int>(below(descriptors));
  if (guess_[c.from] < 0) c.from = static_cast<int>(below(descriptors));
  if (what == action::view) {
    c.offset = std::max<std::int64_t>(0, some_offset(files, limits, c.from));
    c.bytes = 1 + below(32);
    c.memory = take_output(output_bytes, c.bytes * 8, 0);
  } else if (what == action::status) {
    c.memory = take_output(output_bytes, sizeof(file_status), 0);
  } else {
    c.offset = some_offset(files, limits, c.from);
    c.bytes = below(4) == 0 ? below(64) : below(limits.bytes_max);
    c.memory = take_output(output_bytes, c.bytes, below(16));
  }
  plan(c);
}

void random_group::plan_peek(const script_limits& limits, std::uint64_t& output_bytes) {
  if (limits.mappings == 0) return;
  device_call c{action::peek};
  const auto from = static_cast<int>(below(limits.mappings));
  c.from = descriptors + from;
  c.bytes = below(2) == 0 ? 1 : std::max<std::uint64_t>(1, guess_room_[from]);
  c.memory = take_output(output_bytes, c.bytes, 0);
  plan(c);
}

void random_group::plan_send(std::string& input) {
  device_call c{action::send};
  c.from = sink_register;
  std::string message = name_ + ":" + std::to_string(below(1000000)) + ";";
  c.bytes = message.size();
  c.memory = add_string(input, message);
  plan(c, 0, std::move(message));
}

void random_group::plan_advise(const std::vector<model_file>& files, const script_limits& limits) {
  device_call c{action::advise};
  c.from = static_cast<int>(below(descriptors));
  c.offset = some_offset(files, limits, c.from);
  c.bytes = below(8) * limits.page_bytes * 4;
  c.flags = below(4) != 0 ? POSIX_FADV_WILLNEED : POSIX_FADV_SEQUENTIAL;
  plan(c);
}

script random_group::next(const std::vector<model_file>& files, const script_limits& limits,
                          std::string& input, std::uint64_t& output_bytes) {
  plan_.clear();
  for (int i = 0; i < descriptors; ++i)
    guess_[i] = open_[i] ? static_cast<int>(open_[i]->file) : -1;
  for (int i = 0; i < mappings; ++i) guess_room_[i] = mapped_[i] ? mapped_[i]->rest.size() : 0;
  plan_set(sink_register, limits.sink);
  // Registers that were never written hold -1, which is no pointer.
  for (int i = 0; i < mappings; ++i) {
    if (!mapped_[i]) plan_set(descriptors + i, 0);
  }
  while (plan_.size() < limits.calls) {
    switch (below(17)) {
      case 0:
      case 1:
      case 2: plan_open(files, limits, input); break;
      case 3: plan_close(static_cast<int>(below(descriptors))); break;
      case 4:
      case 5: plan_map(files, limits); break;
      case 6:
      case 7: plan_peek(limits, output_bytes); break;
      case 8: plan_read(files, limits, output_bytes, action::status); break;
      case 9: plan_read(files, limits, output_bytes, action::view); break;
      case 10: plan_send(input); break;
      case 11: plan_advise(files, limits); break;
      default: plan_read(files, limits, output_bytes, action::read); break;
    }
  }
  for (int i = 0; i < descriptors; ++i) {
    if (below(4) != 0) plan_close(i);
  }
  for (int i = 0; i < mappings; ++i) {
    if (!limits.keep_mappings || below(2) == 0) plan_unmap(i);
  }
  script s;
  for (const planned& p : plan_) s.push_back(p.call);
  return s;
}

// ---- checking answers

bool random_group::tolerates(const tolerated& also, std::int64_t result) {
  return (also.host_errors && result == -EIO) || (also.no_frames && result == -ENOBUFS);
}

void random_group::check_open(const model_file& file, const planned& p, const tolerated& also,
                              std::int64_t result) {
  std::optional<open_file>& held = open_[p.call.to];
  held.reset();
  if ((p.call.flags & O_ACCMODE) != O_RDONLY) {
    EXPECT_EQ(result, -EROFS);
  } else if ((p.call.flags & O_DIRECTORY) != 0) {
    EXPECT_EQ(result, -EINVAL);
  } else if ((also.host_errors && result == -EIO) || (also.no_records && result == -EMFILE)) {
    return;
  } else if (file.what == model_file::kind::absent) {
    EXPECT_EQ(result, -ENOENT);
  } else if (file.what == model_file::kind::folder) {
    EXPECT_EQ(result, -EISDIR);
  } else {
    EXPECT_GE(result, 0);
    if (result >= 0) held = {p.file, result};
  }
}

void random_group::check_read(const std::string& content, const device_call& c,
                              std::uint64_t page_bytes, const tolerated& also, std::int64_t result,
                              const std::string& output) {
  if (c.offset < 0) {
    EXPECT_EQ(result, -EINVAL);
    return;
  }
  const auto at = static_cast<std::uint64_t>(c.offset);
  std::string expected = at < content.size() ? content.substr(at, c.bytes) : std::string();
  const auto size = static_cast<std::int64_t>(expected.size());
  if (result != size && tolerates(also, result) && size != 0) {
    expected.clear();
  } else if (result > 0 && result < size && (also.host_errors || also.no_frames)) {
    // What came before an error: whole pages.
    EXPECT_EQ((at + static_cast<std::uint64_t>(result)) % page_bytes, 0u);
    expected.resize(static_cast<std::size_t>(result));
  } else {
    EXPECT_EQ(result, size);
  }
  expected.resize(c.bytes, untouched);
  expected = std::string(16, untouched) + expected + std::string(16, untouched);
  expect_same_bytes(output.substr(c.memory - 16, c.bytes + 32), expected,
                    "bytes read, with 16 around them");
}

void random_group::check_map(const std::string& content, const device_call& c,
                             std::uint64_t page_bytes, const tolerated& also, const outcome& o) {
  std::optional<mapped>& held = mapped_[c.to - descriptors];
  held.reset();
  if (c.offset < 0) {
    EXPECT_EQ(o.result, -EINVAL);
    return;
  }
  const auto at = static_cast<std::uint64_t>(c.offset);
  const std::uint64_t room = page_bytes - at % page_bytes;
  std::string rest = at < content.size() ? content.substr(at, room) : std::string();
  if (tolerates(also, o.result) && !rest.empty()) return;
  EXPECT_EQ(o.result, static_cast<std::int64_t>(std::min<std::uint64_t>(rest.size(), c.bytes)));
  EXPECT_EQ(o.value != 0, o.result > 0);
  if (o.result <= 0) return;
  rest.resize(room, '\0');
  held = {std::move(rest)};
}

void random_group::check_view(const std::string& content, const device_call& c,
                              const tolerated& also, const outcome& o, const std::string& output) {
  const auto at = static_cast<std::uint64_t>(c.offset);
  const std::uint64_t size = at < content.size() ? (content.size() - at) / 8 : 0;
  EXPECT_EQ(o.result, static_cast<std::int64_t>(size));
  const bool failed = o.value != 0 && (also.host_errors || also.no_frames);
  for (std::uint64_t k = 0; k < c.bytes; ++k) {
    const std::uint64_t word = word_at(output, c.memory + k * 8);
    if (failed && word == 0) continue;
    EXPECT_EQ(word, word_at(content, at + k * 8)) << "element " << k;
  }
  if (!failed) {
    EXPECT_EQ(o.value, size < c.bytes ? -EINVAL : 0);
  }
}

void random_group::check(const std::vector<model_file>& files, const script_limits& limits,
                         const tolerated& also, const std::vector<outcome>& outcomes,
                         const std::string& output) {
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    const planned& p = plan_[i];
    const device_call& c = p.call;
    const std::int64_t result = outcomes[i].result;
    const ::testing::ScopedTrace trace(
        __FILE__, __LINE__,
        name_ + ", call " + std::to_string(i) + ": action " +
            std::to_string(static_cast<int>(c.what)) + " from " + std::to_string(c.from) +
            " offset " + std::to_string(c.offset) + " bytes " + std::to_string(c.bytes));
    if (c.what == action::set) continue;
    if (c.what == action::open) {
      check_open(files[p.file], p, also, result);
      continue;
    }
    if (c.what == action::send) {
      EXPECT_EQ(result, static_cast<std::int64_t>(c.bytes));
      sent_ += p.message;
      continue;
    }
    if (c.what == action::unmap) {
      std::optional<mapped>& held = mapped_[c.from - descriptors];
      EXPECT_EQ(result, held ? 0 : -EINVAL);
      held.reset();
      continue;
    }
    if (c.what == action::peek) {
      const std::optional<mapped>& held = mapped_[c.from - descriptors];
      EXPECT_EQ(result, held ? static_cast<std::int64_t>(c.bytes) : -EFAULT);
      if (held)
        expect_same_bytes(output.substr(c.memory, c.bytes), held->rest.substr(0, c.bytes),
                          "mapped bytes");
      continue;
    }
    std::optional<open_file>& held = open_[c.from];
    if (!held) {
      if (c.what == action::view) {
        EXPECT_EQ(outcomes[i].value, -EBADF);
      } else if ((c.what == action::read || c.what == action::map || c.what == action::advise) &&
                 c.offset < 0) {
        EXPECT_EQ(result, -EINVAL);
      } else {
        EXPECT_EQ(result, -EBADF);
      }
      if (c.what == action::map) mapped_[c.to - descriptors].reset();
      continue;
    }
    const std::string& content = files[held->file].content;
    switch (c.what) {
      case action::close:
        EXPECT_EQ(result, 0);
        held.reset();
        break;
      case action::status: {
        EXPECT_EQ(result, 0);
        file_status status;
        std::memcpy(&status, output.data() + c.memory, sizeof status);
        EXPECT_EQ(status.size, content.size());
        break;
      }
      case action::advise: EXPECT_EQ(result, c.offset < 0 ? -EINVAL : 0); break;
      case action::read: check_read(content, c, limits.page_bytes, also, result, output); break;
      case action::map: check_map(content, c, limits.page_bytes, also, outcomes[i]); break;
      case action::view: check_view(content, c, also, outcomes[i], output); break;
      default: break;
    }
  }
}

std::vector<std::pair<std::int64_t, std::size_t>> random_group::held() const {
  std::vector<std::pair<std::int64_t, std::size_t>> all;
  for (const auto& o : open_) {
    if (o) all.emplace_back(o->fd, o->file);
  }
  return all;
}

}  // namespace gpufs::testing
