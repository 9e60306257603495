// What the daemon answers to each message.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "base/crash_point.hpp"
#include "base/saturating.hpp"
#include "daemon/connection.hpp"
#include "daemon/server.hpp"
#include "daemon/setting_checks.hpp"

namespace gdev {

namespace {

void put(message& said, std::string_view name, std::initializer_list<std::uint64_t> numbers) {
  static_cast<void>(set_name(said, name));
  std::copy(numbers.begin(), numbers.end(), said.numbers.begin());
}

/** How long clients of an earlier daemon have to come back; they look for one twice a second. */
constexpr std::uint64_t clients_come_back_ns = 1'500'000'000;

/** Returns the bits that `clients` answers. */
std::uint64_t client_flags(const turn_report& turn) noexcept {
  return (turn.is_paused ? client_flag::paused : 0) | (turn.is_waiting ? client_flag::waits : 0) |
         (turn.is_unfit ? client_flag::unfit : 0) | (turn.is_held ? client_flag::held : 0);
}

/** Answers settings that are impossible. */
message refusal(const message& asked, const setting_answer& found) noexcept {
  return {.kind = asked.kind,
          .error = EINVAL,
          .numbers = {static_cast<std::uint64_t>(found.what), found.most * account_unit}};
}

double mebibytes(std::uint64_t units) noexcept {
  return static_cast<double>(units * account_unit) / (1 << 20);
}

std::uint64_t signed_number(int value) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
}

}  // namespace

std::uint64_t server::now() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

bool server::may_command(const connection& from) const noexcept {
  return from.peer.uid == 0 || from.peer.uid == geteuid();
}

message server::join(connection& from, const message& asked) {
  message said;
  said.kind = asked.kind;
  if (from.has_joined) {
    said.error = EALREADY;
    return said;
  }
  try {
    pollfd end{from.process.number(), POLLIN, 0};
    if (from.peer.pid > 0 && (!from.process || poll(&end, 1, 0) != 0)) {
      said.error = ESRCH;  // it has ended, and left the connection to another process
      return said;
    }
    from.page = std::make_unique<shared_page>();
    if (from.process) {
      watch_process(from);
    }
  } catch (const std::system_error& error) {
    said.error = error.code().value();
    return said;
  }
  counter_values before{};
  std::copy_n(asked.numbers.begin() + 4, counters, before.begin());
  said.error = accounts_.join(from.id, name_of(asked), static_cast<std::uint64_t>(from.peer.pid),
                              from.peer.uid, from.page->words().account, units_of(asked.numbers[0]),
                              before[static_cast<std::size_t>(counter::refusals)]);
  from.has_joined = said.error == 0;
  crash_point("account_joined");
  note_clients(!accounts_.clients().empty());
  crash_point("client_noted");
  if (from.has_joined) {
    observations_.join(from.id, name_of(asked), from.page->words(), before);
    turns_.join(from.id, from.page->words(), before, asked.job, now());
    const std::uint64_t total = units_of(asked.numbers[3]);
    note_gpu(from, asked.numbers[2], total);
    turns_.use_gpu(from.id, asked.numbers[2], total, std::nullopt, now());
    const auto share = host_share::unpacked(asked.numbers[1]);
    turns_.hold_again(from.id, share.memory, share.files);
    if (share.is_off) {
      turns_.come_back_out(from.id, now());
    } else if (share.is_held) {
      turns_.come_back_held(from.id);
    }
  }
  crash_point("turns_joined");
  said.numbers[0] = accounts_.report(from.id).limit * account_unit;
  return said;
}

void server::put_memory(const connection& from, message& said, std::uint64_t gpu,
                        std::uint64_t total) const {
  const vgpu_report found = accounts_.report(from.id);
  const turns::prospect could_have = turns_.prospect_of(from.id, gpu, total);
  put(said, found.name,
      {found.limit * account_unit, found.used * account_unit, could_have.most * account_unit,
       could_have.sure * account_unit});
}

/** What clients ask. */
message server::answer_client(connection& from, const message& asked) {
  message said;
  said.kind = asked.kind;
  if (!from.has_joined) {
    said.error = ENOENT;
    return said;
  }
  const auto& numbers = asked.numbers;
  switch (asked.kind) {
    case message_kind::want:
      note_gpu(from, numbers[1], units_of(numbers[2]));
      turns_.use_gpu(from.id, numbers[1], units_of(numbers[2]), units_of(numbers[3]), now());
      said.error = numbers[4] > static_cast<std::uint64_t>(memory_place::not_any_more)
                       ? EINVAL
                       : turns_.want(from.id, units_of(numbers[0]),
                                     static_cast<memory_place>(numbers[4]), now());
      crash_point("granted");
      put_memory(from, said);
      break;
    case message_kind::memory: put_memory(from, said, numbers[0], units_of(numbers[1])); break;
    case message_kind::gpu:
      note_gpu(from, numbers[0], units_of(numbers[1]));
      turns_.use_gpu(from.id, numbers[0], units_of(numbers[1]), units_of(numbers[2]), now());
      put_memory(from, said);
      break;
    case message_kind::turn:
      said.error = turns_.happen(from.id, static_cast<turn_event>(numbers[0]), numbers[1],
                                 numbers[2], now());
      crash_point("turn_changed");
      said.numbers[0] = from.page->words().order.load(std::memory_order_relaxed);
      break;
    case message_kind::unknown: said.error = add_unknown(from, asked); break;
    case message_kind::overhead:
      if (numbers[2] > static_cast<std::uint64_t>(overhead_source::difference)) {
        said.error = EINVAL;
        break;
      }
      said.error = accounts_.set_overhead(
          from.id, {units_of(numbers[0]), static_cast<overhead_source>(numbers[2])},
          numbers[1] != 0);
      turns_.change(turns_.settings(), now());  // a GPU's capacity may be another one
      put_memory(from, said);
      break;
    case message_kind::host:
      said.error = turns_.hold(from.id, units_of(numbers[0]), units_of(numbers[1]));
      break;
    default: said.error = EINVAL; break;  // answer() sends no others here
  }
  keep_counts(from);
  return said;
}

/** What everybody may ask. */
message server::answer_query(const message& asked) const {
  message said;
  said.kind = asked.kind;
  std::uint64_t index = asked.numbers[0];
  if (asked.kind == message_kind::list) {
    const auto all = accounts_.vgpus();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) {
      return asked.numbers[1] != 0 ? one.number > asked.numbers[1] : index-- == 0;
    });
    if (found != all.end()) {
      const vgpu_report& one = *found;
      put(said, one.name,
          {one.limit * account_unit, one.used * account_unit, one.granted * account_unit,
           one.clients, one.refusals, one.owner, one.policy.reserve * account_unit,
           signed_number(one.policy.priority), static_cast<std::uint64_t>(one.policy.when_full),
           one.policy.end_after_s, one.number, one.held * account_unit,
           one.overhead * account_unit});
      return said;
    }
  } else if (asked.kind == message_kind::clients) {
    const auto all = accounts_.clients();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) {
      return asked.numbers[1] != 0 ? one.id == asked.numbers[1] : index-- == 0;
    });
    if (found != all.end()) {
      const client_report& one = *found;
      const turn_report turn = turns_.report(one.id, now());
      put(said, one.vgpu,
          {one.process, one.user, one.used * account_unit, one.granted * account_unit, one.refusals,
           static_cast<std::uint64_t>(turn.now), now() - turn.since_ns, client_flags(turn),
           static_cast<std::uint64_t>(turn.stays), turn.swappable * account_unit,
           turn.resident * account_unit, turn.turns, turn.bytes_out, turn.bytes_in, turn.moving_ns,
           turn.waiting_ns});
      return said;
    }
  } else if (asked.kind == message_kind::overhead_of) {
    if (const vgpu_report of = accounts_.report(index); !of.name.empty()) {
      const overhead_report one = accounts_.overhead(index);
      put(said, of.name, {one.units * account_unit, static_cast<std::uint64_t>(one.source)});
      return said;
    }
  } else {
    const auto all = turns_.gpus();
    if (index < all.size()) {
      const gpu_report& one = all[index];
      put(said, "",
          {one.number, one.total * account_unit, one.capacity * account_unit,
           one.rooms * account_unit, one.overhead * account_unit, one.nobodys * account_unit});
      return said;
    }
  }
  said.error = ENOENT;
  return said;
}

/** Adds or changes a virtual GPU. */
message server::change_vgpu(const message& asked) {
  message said;
  said.kind = asked.kind;
  const std::string_view name = name_of(asked);
  const auto& numbers = asked.numbers;
  vgpu_report before;
  std::uint64_t reserved = 0;  // by the others
  bool is_there = false;
  for (const vgpu_report& one : accounts_.vgpus()) {
    if (one.name == name) {
      before = one;
      is_there = true;
    } else {
      reserved = sum(reserved, one.policy.reserve);
    }
  }
  const bool is_new = asked.kind == message_kind::add;
  if (is_there == is_new) {
    said.error = is_new ? EEXIST : ENOENT;
    return said;
  }
  vgpu_policy policy = before.policy;
  const bool is_kept = !is_new && numbers[0] == unchanged;
  const std::uint64_t limit = is_kept ? before.limit : units_of(numbers[0]);
  const std::uint64_t owner = !is_new && numbers[1] == unchanged ? before.owner : numbers[1];
  setting_answer found = read_policy(&numbers[2], policy);
  if (found.what == setting_fault::none) {
    // A reserve that is there already may be given back by and by.
    const bool is_more = policy.reserve > before.policy.reserve;
    found = judge_vgpu(limit, policy, reserved, is_more ? gpu_for_programs() : account_units_max);
  }
  if (is_new && !is_word(name)) {
    found = {setting_fault::name};
  }
  if (found.what != setting_fault::none) {
    return refusal(asked, found);
  }
  said.error = is_new ? accounts_.add(name, limit, owner, policy)
                      : accounts_.set(name, limit, owner, policy);
  said.error = said.error == 0 ? save() : said.error;
  return said;
}

/** Changes what programs may have, or answers what holds, which everybody may ask. */
message server::change_settings(const connection& from, const message& asked) {
  message said;
  said.kind = asked.kind;
  turn_settings chosen = turns_.settings();
  const bool is_question = std::all_of(asked.numbers.begin(), asked.numbers.begin() + 4,
                                       [](std::uint64_t one) { return one == unchanged; });
  if (!is_question) {
    if (!may_command(from)) {
      said.error = EPERM;
      return said;
    }
    if (const setting_answer found = read_settings(asked.numbers.data(), chosen, known_gpu());
        found.what != setting_fault::none) {
      return refusal(asked, found);
    }
    turns_.change(chosen, now());
    crash_point("settings_changed");
    said.error = save();
  }
  put(said, "",
      {chosen.capacity * account_unit, chosen.spare * account_unit, chosen.host * account_unit,
       chosen.files * account_unit, known_gpu() * account_unit});
  return said;
}

std::uint64_t server::known_gpu() const noexcept {
  return largest_gpu_ == 0 ? account_units_max : largest_gpu_;
}

std::uint64_t server::gpu_for_programs() const noexcept {
  return std::min(known_gpu(), turns_.settings().capacity);
}

void server::note_gpu(const connection& from, std::uint64_t number, std::uint64_t total) {
  if (number == 0 || total <= largest_gpu_ || total > account_units_max || !may_command(from)) {
    return;
  }
  largest_gpu_ = total;
  std::uint64_t reserved = 0;
  for (const vgpu_report& one : accounts_.vgpus()) {
    reserved = sum(reserved, one.policy.reserve);
  }
  const std::uint64_t most = gpu_for_programs();
  const auto say = [most](const char* what, std::uint64_t units) {
    std::fprintf(stderr, "gdevd: %s is %.1f MiB, and programs may have %.1f MiB of the GPU\n", what,
                 mebibytes(units), mebibytes(most));
  };
  if (reserved > most) {
    say("the --reserve of all virtual GPUs", reserved);
  }
  if (turns_.settings().spare >= most) {
    say("--spare", turns_.settings().spare);
  }
}

/** What root and the daemon's user may ask. */
message server::answer_command(const message& asked) {
  message said;
  said.kind = asked.kind;
  const std::string_view name = name_of(asked);
  const auto& numbers = asked.numbers;
  switch (asked.kind) {
    case message_kind::stop: is_stopped_ = true; return said;
    case message_kind::pause: {
      said.error = ESRCH;
      for (const client_report& one : accounts_.clients()) {
        if (one.process == numbers[0]) {
          said.error = turns_.pause(one.id, numbers[1] != 0, now());
          crash_point("paused");
        }
      }
      return said;
    }
    case message_kind::add:
    case message_kind::set: return change_vgpu(asked);
    case message_kind::remove:
      said.error = accounts_.remove(name);
      if (said.error == 0) {
        observations_.forget(name);
      }
      break;
    default: said.error = EINVAL; break;  // answer() sends no others here
  }
  if (said.error == 0) {
    crash_point("vgpu_changed");
    said.error = save();
    crash_point("state_saved");
  }
  return said;
}

message server::answer(connection& from, const message& asked) {
  message said;
  said.kind = asked.kind;
  switch (asked.kind) {
    case message_kind::hello: return join(from, asked);
    case message_kind::want:
    case message_kind::memory:
    case message_kind::gpu:
    case message_kind::turn:
    case message_kind::host:
    case message_kind::overhead:
    case message_kind::unknown: return answer_client(from, asked);
    case message_kind::list:
    case message_kind::clients:
    case message_kind::overhead_of:
    case message_kind::gpus: return answer_query(asked);
    case message_kind::settings: return change_settings(from, asked);
    case message_kind::observe:
    case message_kind::counts:
    case message_kind::totals:
    case message_kind::unknown_name: return answer_observation(asked);
    case message_kind::add:
    case message_kind::set:
    case message_kind::remove:
    case message_kind::pause:
    case message_kind::stop:
      if (may_command(from)) {
        return answer_command(asked);
      }
      said.error = EPERM;
      return said;
    case message_kind::key_get:
    case message_kind::key_make:
    case message_kind::key_attach:
    case message_kind::key_detach:
    case message_kind::key_status:
    case message_kind::key_set:
    case message_kind::key_remove:
    case message_kind::key_list: break;  // receive() asks keys_: descriptors go with these
  }
  said.error = EINVAL;
  return said;
}

/** Notes in the lock's file whether there are clients: the next daemon waits for them. */
void server::note_clients(bool has_clients) const noexcept {
  static_cast<void>(!ftruncate(lock_.number(), has_clients ? 1 : 0));
}

// --- What outlives a daemon: a line for each virtual GPU, and one of settings ---

void server::load() {
  turn_settings standard;
  standard.host = units_of(static_cast<std::uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L)) *
                           static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 2);
  turns_.change(standard, now());
  struct stat before{};
  if (fstat(lock_.number(), &before) == 0 && before.st_size != 0) {
    turns_.wait_for_clients(now() + clients_come_back_ns);
  }
  const std::string name = path_ + ".state";
  unlink((name + ".new").c_str());  // of a daemon that was killed as it wrote
  std::ifstream file(name);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    bool is_right = false;
    if (what == "vgpu") {
      std::string vgpu;
      std::uint64_t limit = 0;
      std::uint64_t owner = 0;
      vgpu_policy policy;
      int when_full = 0;
      is_right = (words >> vgpu >> limit >> owner >> policy.reserve >> policy.priority >>
                  when_full >> policy.end_after_s) &&
                 policy.end_after_s <= end_after_s_max && when_full >= 0 &&
                 when_full <= static_cast<int>(full_policy::fail);
      policy.when_full = static_cast<full_policy>(when_full);
      is_right = is_right && accounts_.add(vgpu, limit, owner, policy) == 0;
    } else if (what == "gpus") {
      turn_settings chosen;
      is_right = (words >> chosen.capacity >> chosen.spare >> chosen.host >> chosen.files) &&
                 chosen.capacity > chosen.spare;
      turns_.change(chosen, now());
    }
    if (!is_right) {
      fail(name + ", line " + std::to_string(number), EINVAL);
    }
  }
}

int server::save() const {
  const std::string name = path_ + ".state";
  const std::string made = name + ".new";
  const turn_settings& chosen = turns_.settings();
  std::ostringstream text;
  text << "gpus " << chosen.capacity << ' ' << chosen.spare << ' ' << chosen.host << ' '
       << chosen.files << '\n';
  for (const vgpu_report& one : accounts_.vgpus()) {
    text << "vgpu " << one.name << ' ' << one.limit << ' ' << one.owner << ' ' << one.policy.reserve
         << ' ' << one.policy.priority << ' ' << static_cast<int>(one.policy.when_full) << ' '
         << one.policy.end_after_s << '\n';
  }
  const std::string written = text.str();
  errno = 0;  // a write that is cut short sets none
  const file_descriptor file(
      open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  crash_point("state_opened");
  const bool is_written = file &&
                          write(file.number(), written.data(), written.size()) ==
                              static_cast<ssize_t>(written.size()) &&
                          fsync(file.number()) == 0;
  crash_point("state_written");
  if (!is_written || rename(made.c_str(), name.c_str()) != 0) {
    const int error = errno != 0 ? errno : ENOSPC;
    unlink(made.c_str());
    return error;
  }
  return 0;
}

}  // namespace gdev
