/** Which settings of virtual GPUs and GPUs are possible. Amounts are in units of account_unit. */
#pragma once

#include <cstdint>
#include <string_view>

#include "daemon/accounts.hpp"
#include "daemon/turns.hpp"
#include "protocol/messages.hpp"

namespace gdev {

inline constexpr std::uint64_t end_after_s_max = 1'000'000'000;

/** What is wrong with settings, and the most that is possible. */
struct setting_answer {
  setting_fault what = setting_fault::none;
  std::uint64_t most = 0;
};

/** A name is a word of the state file and of tables. */
[[nodiscard]] bool is_word(std::string_view name) noexcept;

/** Changes a policy by the four numbers of a message; `unchanged` leaves one as it is. */
[[nodiscard]] setting_answer read_policy(const std::uint64_t* numbers,
                                         vgpu_policy& policy) noexcept;

/**
 * Judges a virtual GPU. reserved: by the others; gpu: what programs may have of the largest GPU, or
 * account_units_max if none is known.
 */
[[nodiscard]] setting_answer judge_vgpu(std::uint64_t limit, const vgpu_policy& policy,
                                        std::uint64_t reserved, std::uint64_t gpu) noexcept;

/** Changes settings by the four numbers of a message, and judges them. gpu: the largest one. */
[[nodiscard]] setting_answer read_settings(const std::uint64_t* numbers, turn_settings& settings,
                                           std::uint64_t gpu) noexcept;

}  // namespace gdev
