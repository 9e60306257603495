#include <cerrno>

#include "interposer/client.hpp"
#include "interposer/held_page.hpp"

namespace gdev {

void begin_window() noexcept {
  const held_page page(true);
  memory_in_use& memory = held_page::memory();
  memory.window = {memory.on_gpus(), true, !is_away()};
}

memory_window end_window() noexcept {
  const held_page page(true);
  return held_page::memory().window;
}

measured_overhead told_overhead() noexcept {
  const held_page page(true);
  return held_page::memory().overhead;
}

message about_overhead(const measured_overhead& now, bool may_be_refused) noexcept {
  message said;
  said.kind = message_kind::overhead;
  said.numbers = {now.bytes, std::uint64_t{may_be_refused}, static_cast<std::uint64_t>(now.source)};
  return said;
}

int tell_overhead(const measured_overhead& now, bool may_be_refused) noexcept {
  const measured_overhead before = told_overhead();
  const auto keep = [](const measured_overhead& what) {
    const held_page page(true);
    held_page::memory().overhead = what;
  };
  keep(now);  // first: a daemon that comes meanwhile hears of it
  message said = about_overhead(now, may_be_refused);
  if (ask_daemon(said) != ENOMEM) {
    return 0;
  }
  keep(before);
  return ENOMEM;
}

}  // namespace gdev
