#include "interposer/observed.hpp"

#include <cstdint>
#include <cstring>

#include "interposer/client.hpp"
#include "interposer/gate.hpp"
#include "interposer/loader.hpp"
#include "interposer/unknown_names.hpp"
#include "protocol/counters.hpp"
#include "protocol/messages.hpp"

namespace gdev {

namespace {

own_counts counts_now() noexcept {
  return {count_submissions(work::launch),
          count_submissions(work::fill),
          count_submissions(work::to_device),
          count_submissions(work::to_host),
          unknown_names().times(),
          bypasses()};
}

/** Tells the daemon the names of unknown functions that it does not have, from `index` on. */
void tell_names(std::size_t index) noexcept {
  const char* name = unknown_names().at(index);
  for (; name != nullptr; name = unknown_names().at(++index)) {
    message said;
    said.kind = message_kind::unknown;
    said.numbers[0] = index;
    static_assert(name_list::longest < sizeof(std::uint64_t) * 15, "a name fits the message");
    std::memcpy(&said.numbers[1], name, std::strlen(name));
    if (ask_daemon(said) != 0) {
      return;
    }
  }
}

/** What happened since the last question counts too; but of a process that is killed it is lost. */
__attribute__((destructor)) void publish_at_exit() noexcept {
  if (has_joined()) {
    publish_last_counts(counts_now());
  }
}

}  // namespace

void answer_question() noexcept {
  const counts_question now = read_question();
  if (!now.is_answered) {
    tell_names(now.known_names);
    publish_counts(now.asked, counts_now());
  }
}

}  // namespace gdev
