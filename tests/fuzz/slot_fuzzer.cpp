#include "fuzz/slot_fuzzer.hpp"

#include <errno.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "fuzz/input.hpp"
#include "fuzz/targets.hpp"

namespace gpufs::testing {

namespace {

constexpr int requests_max = 40;  // of an input
// What a slot is posted with, beside its number.
constexpr std::uint8_t with_the_next = 16, bell_first = 32, number_jumps = 64;

const char* const names[] = {"/a",      "/page", "/new",      "/newer",
                             "/folder", "/link", "/precious", "/page/"};

bool names_paths(request_code code) {
  return code == request_code::open || code == request_code::open_write ||
         code == request_code::unlink || code == request_code::rename;
}
bool opens(request_code code) {
  return code == request_code::open || code == request_code::open_write;
}

std::uint64_t likely_offset(fuzz_input& in) {
  const std::uint8_t kind = in.byte();
  if (kind < 128) return in.number(2);
  if (kind < 192) return (std::uint64_t{1} << kind % 64) + in.byte() - 8;
  return in.number(8);
}

void put(std::string& to, std::size_t at, const std::string& bytes) {
  if (at < to.size())
    to.replace(at, std::min(bytes.size(), to.size() - at), bytes, 0, to.size() - at);
}

std::uint64_t bytes_to_write(const request& r) { return r.length & ~masked_flag; }
bool is_masked(const request& r) { return (r.length & masked_flag) != 0; }
bool is_written(const request& r, const std::string& staging, std::uint64_t i) {
  if (!is_masked(r)) return true;
  return (static_cast<unsigned char>(staging[mask_offset(bytes_to_write(r)) + i / 8]) >> i % 8 &
          1) != 0;
}
// What of the limits has to hold, or it is refused.
bool may_be_written(const request& r, std::uint64_t room) {
  const std::uint64_t bytes = bytes_to_write(r);
  if (bytes > room || r.offset > limits::file_bytes_max ||
      bytes > limits::file_bytes_max - r.offset)
    return false;
  return !is_masked(r) || mask_offset(bytes) + 8 * mask_words(bytes) <= room;
}

service_rig_options one_worker() {
  service_rig_options options;
  options.workers = 1;
  options.openers = false;
  options.slots = 4;
  options.spin_ns =
      // it sleeps at once, and a request wakes it: on a busy machine that is quicker than to spin
      // beside the caller
      0;
  options.timeouts = {30'000'000'000};
  return options;
}

}  // namespace

slot_fuzzer::slot_fuzzer()
    : io_(std::make_shared<watched_backend>(std::uint64_t{service_rig::frame_count} *
                                            service_rig::frame_bytes)),
      rig_(io_, one_worker()), client_(rig_.client()),
      sink_(static_cast<std::uint32_t>(rig_.sinks().open([](const char* bytes, std::size_t count) {
        unsigned sum = 0;  // every byte can be read
        for (std::size_t i = 0; i < count; ++i) sum += static_cast<unsigned char>(bytes[i]);
        return sum % 2 == 0 ? 0 : EPROTO;
      }))),
      frames_(rig_.frames()) {}

void slot_fuzzer::run(std::span<const std::uint8_t> input) {
  io_->begin();
  fuzz_input in(input);
  for (int i = 0; in.left() != 0 && i < requests_max; ++i) {
    const std::uint8_t how = in.byte();
    const std::uint32_t slot = how % slot_count;
    if (posted_[slot].is_there) finish();
    std::string staging(staging_bytes, '\0');
    for (std::size_t b = 0; b < staging.size(); ++b) staging[b] = static_cast<char>(b * 37 + slot);
    const request r = make_request(in, staging);
    name_paths(r, staging);
    std::memcpy(rig_.memory().view().staging(slot), staging.data(), staging.size());
    posted_[slot] = {true, r, std::move(staging)};
    post(slot, how, r, in);
    if ((how & with_the_next) == 0) finish();
  }
  finish();
  require(rig_.files().open_count() == reading_.size() + writing_.size(),
          "files that are open, and should not");
  std::set<std::uint64_t> handles = std::move(reading_);
  for (const auto& [handle, node] : writing_) handles.insert(handle);
  for (const std::uint64_t handle : handles)
    require(rig_.close(handle).result == 0, "a file that does not close");
  reading_.clear();
  writing_.clear();
  require(rig_.files().open_count() == 0, "files that are open after they were closed");
  require(rig_.call({static_cast<request_code>(0), 0, 0, 0}).result == -ENOSYS,
          "a service that does not go on");
  require(io_->is_precious_untouched(), "a file that nobody may open");
}

request slot_fuzzer::make_request(fuzz_input& in, std::string& staging) {
  const std::uint8_t c = in.byte(), h = in.byte(), how = in.byte();
  request r{
      static_cast<request_code>(c < 192 ? c % (request_code_max + 1) : c % request_record::codes),
      0, 0, 0};
  if (opens(r.code)) {
    r.handle = h < 192 ? h % 32u : static_cast<std::uint32_t>(in.number(4));
  } else if (h >= 192) {
    r.handle = in.number(8);
  } else {
    const auto pick = [h](const auto& some) {
      return std::next(some.begin(), static_cast<std::ptrdiff_t>(h / 4 % some.size()));
    };
    const bool of_writing = r.code == request_code::write || h % 4 != 0;
    if (r.code == request_code::send) r.handle = sink_;
    else if (of_writing && !writing_.empty())
      r.handle = r.code == request_code::write ? pick(writing_)->second : pick(writing_)->first;
    else if (!reading_.empty()) r.handle = *pick(reading_);
    if (h >= 160) r.handle ^= std::uint64_t{1} << (h % 32 * 2 + how / 64 % 2);
  }
  std::uint32_t likely = static_cast<std::uint32_t>(in.number(2)) % (staging_bytes + 1);
  if ((how & 2) != 0) {
    const std::string bytes = in.text(in.byte() % 64);
    put(staging, 0, bytes);
    if (names_paths(r.code)) likely = static_cast<std::uint32_t>(bytes.size());
  } else if (names_paths(r.code)) {
    std::string path = names[how / 4 % std::size(names)];
    if (r.code == request_code::rename)
      path += std::string(1, '\0') + names[in.byte() % std::size(names)];
    put(staging, 0, path);
    likely = static_cast<std::uint32_t>(path.size());
  }
  r.length = (how & 1) != 0 ? static_cast<std::uint32_t>(in.number(4)) & request_record::length_max
                            : likely;
  if (r.code == request_code::write && (how & 128) != 0) {
    r.length |= masked_flag;
    put(staging, mask_offset(bytes_to_write(r)), in.text(in.byte() % 64));
  }
  if (r.code == request_code::bulk) {
    const std::uint8_t frame = in.byte();
    const bulk_target to{frame < 192 ? frame % (service_rig::frame_count + 2)
                                     : static_cast<std::uint32_t>(in.number(4))};
    std::memcpy(staging.data(), &to, sizeof to);
  }
  r.offset = likely_offset(in);
  return r;
}

// All paths that a request can be taken to mean.
void slot_fuzzer::name_paths(const request& r, const std::string& staging) {
  if (!names_paths(r.code) || r.length > staging.size()) return;
  const std::string all = staging.substr(0, r.length);
  const std::size_t end = all.find('\0');
  if (r.code != request_code::rename) {
    if (end == std::string::npos) io_->name(all);
  } else if (end != std::string::npos) {
    io_->name(all.substr(0, end));
    io_->name(all.substr(end + 1));
  }
}

void slot_fuzzer::post(std::uint32_t slot, std::uint8_t how, const request& r, fuzz_input& in) {
  slot_record& record = rig_.memory().record(slot);
  record.owner.store_relaxed(static_cast<std::uint32_t>(slot_owner::busy));
  if ((how & number_jumps) != 0) {
    // To any number but the one that it had: that would be no request.
    const auto jump = static_cast<std::uint32_t>(in.number(4));
    record.sequence.store_relaxed(record.sequence.load_relaxed() + (jump == ~0u ? 0 : jump));
  }
  if ((how & bell_first) == 0) {
    client_.post(slot, r);
    return;
  }
  const std::uint32_t sequence = record.sequence.load_relaxed() + 1;
  record.sequence.store_relaxed(sequence);
  const channel_view view = rig_.memory().view();
  view.bell(slot).store_release(sequence);
  view.request(slot).store(r, sequence);
  rig_.workers().wake();
}

void slot_fuzzer::finish() {
  std::vector<std::uint32_t> slots;
  for (std::uint32_t slot = 0; slot < slot_count; ++slot) {
    if (posted_[slot].is_there) slots.push_back(slot);
  }
  std::vector<std::pair<posted, std::int32_t>> answers;
  for (const std::uint32_t slot : slots) {
    const channel_client::answer a = client_.wait(slot);
    require(!a.abandoned, "a request without an answer");
    answers.emplace_back(std::move(posted_[slot]), a.result);
    posted_[slot] = {};
    ++answered_;
  }
  // Opens first: others may be of files that were opened at the same time.
  for (const bool of_opens : {true, false}) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (opens(answers[i].first.asked.code) == of_opens)
        check_answer(answers[i].first, slots[i], answers[i].second, slots.size() == 1);
    }
  }
  check_written(answers);
  if (slots.size() != 1) frames_ = rig_.frames();
  for (const std::uint32_t slot : slots) client_.release(slot);
}

bool slot_fuzzer::is_open(std::uint64_t handle, bool to_write) const {
  return writing_.contains(handle) || (!to_write && reading_.contains(handle));
}

bool slot_fuzzer::is_node(std::uint64_t node) const {
  return std::any_of(writing_.begin(), writing_.end(),
                     [node](const auto& file) { return file.second == node; });
}

void slot_fuzzer::check_answer(const posted& p, std::uint32_t slot, std::int32_t result,
                               bool alone) {
  const request& r = p.asked;
  const auto limit = [&](bool may_succeed) {
    require(may_succeed || result < 0, "an answer to what is out of bounds");
  };
  const auto of_file = [&](bool to_write) {
    require(!alone || result < 0 || is_open(r.handle, to_write),
            "an answer by a handle that is none");
  };
  require(result >= -4095, "an answer that is no error number");
  std::uint64_t may_change = 0;  // so many bytes of the slot's staging memory
  switch (r.code) {
    case request_code::open:
    case request_code::open_write:
      check_open(p, slot, result);
      may_change = result < 0 ? 0 : static_cast<std::uint64_t>(result);
      break;
    case request_code::read:
      limit(r.length <= staging_bytes && r.offset < limits::file_bytes_max);
      of_file(false);
      require(result <= static_cast<std::int64_t>(r.length), "more than was asked for");
      may_change = std::min(r.length, staging_bytes);
      break;
    case request_code::bulk: check_bulk(p, result, alone); break;
    case request_code::close:
    case request_code::close_written: {
      require(result == 0 || result == -EBADF, "a close that is neither done nor refused");
      const bool was_open = is_open(r.handle, false);
      require(result != 0 || was_open, "a close of what is not open");
      require(result == 0 || !alone || !was_open, "a close of what is open that is refused");
      // One of several at the same time.
      if (result == 0) (void)(reading_.erase(r.handle) + writing_.erase(r.handle));
      break;
    }
    case request_code::send:
      limit(r.length <= staging_bytes && r.handle == sink_);
      require(result <= 0, "more than was sent");
      break;
    case request_code::write: {
      limit(may_be_written(r, staging_bytes));
      require(!alone || result < 0 || is_node(r.handle), "a write to a file that nobody may write");
      std::int32_t count = 0;
      for (std::uint64_t i = 0; result >= 0 && i < bytes_to_write(r); ++i)
        count += is_written(r, p.staging, i) ? 1 : 0;
      require(result < 0 || result == count, "not as many as were to be written");
      require(!alone || result >= 0 || !may_be_written(r, staging_bytes) || !is_node(r.handle),
              "a write that is refused");
      break;
    }
    case request_code::truncate:
      limit(r.offset < limits::file_bytes_max);
      of_file(true);
      require(result <= 0, "a truncation that gives more than 0");
      break;
    case request_code::sync:
    case request_code::emptied:
      of_file(true);
      require(result <= 0, "a sync that gives more than 0");
      break;
    case request_code::report_close:
      of_file(true);
      require(result <= 0, "a report that gives more than 0");
      break;
    case request_code::unlink:
    case request_code::rename: {
      const std::string all = p.staging.substr(0, std::min<std::size_t>(r.length, staging_bytes));
      const auto zeros = std::count(all.begin(), all.end(), '\0');
      limit(r.length != 0 && r.length <= staging_bytes &&
            zeros == (r.code == request_code::rename ? 1 : 0));
      require(result <= 0, "a change of names that gives more than 0");
      break;
    }
    default: require(result == -ENOSYS, "an answer to a code that does not exist");
  }
  require(std::memcmp(rig_.memory().view().staging(slot) + may_change,
                      p.staging.data() + may_change, staging_bytes - may_change) == 0,
          "bytes in staging memory that nobody asked for");
}

void slot_fuzzer::check_open(const posted& p, std::uint32_t slot, std::int32_t result) {
  const request& r = p.asked;
  const bool is_path = r.length != 0 && r.length < limits::path_bytes_max &&
                       p.staging.substr(0, r.length).find('\0') == std::string::npos;
  require(is_path || result < 0, "a file of no path");
  if (result < 0) return;
  const bool changes = r.code == request_code::open_write;
  require(changes ? result == 0
                  : static_cast<std::uint64_t>(result) <=
                        std::min<std::uint64_t>(r.offset, staging_bytes),
          "more bytes with an open than there is room for");
  const reply_record& reply = rig_.memory().view().reply(slot);
  const std::uint64_t handle = reply.handle.load_relaxed();
  require(handle != 0 && !is_open(handle, false), "a handle that is none, or somebody else's");
  if (changes && (r.handle & open_writes) != 0)
    writing_.emplace(handle, node_name(reply.node.load_relaxed(), reply.version.load_relaxed()));
  else reading_.insert(handle);
}

// Frames that were not named are as they were.
void slot_fuzzer::check_bulk(const posted& p, std::int32_t result, bool alone) {
  const request& r = p.asked;
  bulk_target to{};
  std::memcpy(&to, p.staging.data(), sizeof to);
  const std::uint64_t begin = std::uint64_t{to.frame} * service_rig::frame_bytes;
  const std::uint64_t whole = (std::uint64_t{r.length} + service_rig::frame_bytes - 1) /
                              service_rig::frame_bytes * service_rig::frame_bytes;
  const bool fits =
      r.length != 0 && begin + whole <= frames_.size() && r.offset < limits::file_bytes_max;
  require(fits || result < 0, "an answer to what is out of bounds");
  const std::uint64_t bytes = result < 0 ? 0 : static_cast<std::uint64_t>(result & bulk_bytes_mask);
  require(bytes <= r.length, "more than was asked for");
  if (!alone) return;
  require(result < 0 || is_open(r.handle, false), "an answer by a handle that is none");
  if (fits) frames_.replace(begin, bytes, rig_.frames(), begin, bytes);
  require(frames_ == rig_.frames(), "bytes in frames that nobody asked for");
}

// What reached files is what requests had asked for; and of a single one all of it.
void slot_fuzzer::check_written(const std::vector<std::pair<posted, std::int32_t>>& answers) {
  const auto asked = [&](std::uint64_t at, char byte) {
    return std::any_of(answers.begin(), answers.end(), [&](const auto& a) {
      const request& r = a.first.asked;
      return r.code == request_code::write && at >= r.offset && at - r.offset < bytes_to_write(r) &&
             may_be_written(r, staging_bytes) && is_written(r, a.first.staging, at - r.offset) &&
             a.first.staging[at - r.offset] == byte;
    });
  };
  std::int64_t bytes = 0;
  for (const written_bytes& w : io_->take_written()) {
    for (std::size_t i = 0; i < w.bytes.size(); ++i)
      require(asked(w.offset + i, w.bytes[i]), "a byte in a file that nobody wrote");
    bytes += static_cast<std::int64_t>(w.bytes.size());
  }
  std::int64_t said = 0;
  for (const auto& [p, result] : answers) {
    if (p.asked.code == request_code::write && result > 0) said += result;
  }
  // Requests of one moment that write the same bytes may be one write.
  require(answers.size() == 1 ? bytes == said : bytes <= said,
          "another number of bytes than was said");
}

void fuzz_slots(std::span<const std::uint8_t> input) {
  static slot_fuzzer fuzzer;
  fuzzer.run(input);
}

}  // namespace gpufs::testing
