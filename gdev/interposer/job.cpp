#include "interposer/job.hpp"

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/environment.hpp"
#include "interposer/notices.hpp"

namespace gdev {

namespace {

constexpr const char* chosen_by_user = "GDEV_JOB_SIZE";

/** Returns the number of processes that a text says, or 0 if it says none. */
std::uint32_t size_in(std::string_view text) noexcept {
  std::uint32_t size = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), size);
  const bool is_number = read.ec == std::errc{} && read.ptr == text.data() + text.size();
  return is_number && size <= job_word::size_max ? size : 0;
}

void complain_once(std::string_view text) noexcept {
  static std::atomic<bool> has_said = false;
  if (!has_said.exchange(true, std::memory_order_relaxed)) {
    constexpr int shown = 40;
    say("%s is \"%.*s\", which is no number from 1 to %u: it is ignored", chosen_by_user,
        text.size() > shown ? shown : static_cast<int>(text.size()), text.data(),
        job_word::size_max);
  }
}

/** Returns how many processes the job has on this host; 0: unknown. */
std::uint32_t job_size() noexcept {
  const std::string_view chosen = variable(chosen_by_user);
  if (const std::uint32_t size = size_in(chosen); size != 0) {
    return size;
  }
  if (!chosen.empty()) {
    complain_once(chosen);
  }
  // Of torchrun; of Open MPI; of MPICH and what is made of it.
  for (const char* const name :
       {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (const std::uint32_t size = size_in(variable(name)); size != 0) {
      return size;
    }
  }
  return 0;
}

}  // namespace

job_word job_of_process() noexcept { return job_word::of(variable("GDEV_JOB"), job_size()); }

}  // namespace gdev
