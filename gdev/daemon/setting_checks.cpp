#include "daemon/setting_checks.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/saturating.hpp"
#include "protocol/account.hpp"

namespace gdev {

bool is_word(std::string_view name) noexcept {
  return !name.empty() && name.size() < message{}.name.size() &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
             std::string_view::npos;
}

setting_answer read_policy(const std::uint64_t* numbers, vgpu_policy& policy) noexcept {
  constexpr std::int64_t priority_max = 1000;
  if (numbers[0] != unchanged) {
    policy.reserve = units_of(numbers[0]);
    if (policy.reserve > account_units_max) {
      return {setting_fault::reserve, account_units_max};
    }
  }
  if (numbers[1] != unchanged) {
    const auto priority = static_cast<std::int64_t>(numbers[1]);
    if (priority < -priority_max || priority > priority_max) {
      return {setting_fault::priority};
    }
    policy.priority = static_cast<int>(priority);
  }
  if (numbers[2] != unchanged) {
    if (numbers[2] > static_cast<std::uint64_t>(full_policy::fail)) {
      return {setting_fault::when_full};
    }
    policy.when_full = static_cast<full_policy>(numbers[2]);
  }
  if (numbers[3] != unchanged) {
    if (numbers[3] > end_after_s_max) {
      return {setting_fault::end_after};
    }
    policy.end_after_s = numbers[3];
  }
  return {};
}

setting_answer judge_vgpu(std::uint64_t limit, const vgpu_policy& policy, std::uint64_t reserved,
                          std::uint64_t gpu) noexcept {
  if (limit == 0 || limit > account_units_max) {
    return {setting_fault::limit, account_units_max};
  }
  if (policy.reserve > limit) {
    return {setting_fault::reserve_above_limit, limit};
  }
  if (policy.reserve != 0 && sum(reserved, policy.reserve) > gpu) {
    return {setting_fault::reserves_above_gpu, gpu};
  }
  return {};
}

setting_answer read_settings(const std::uint64_t* numbers, turn_settings& settings,
                             std::uint64_t gpu) noexcept {
  int index = 0;
  for (std::uint64_t* const one :
       {&settings.capacity, &settings.spare, &settings.host, &settings.files}) {
    const std::uint64_t number = numbers[index];
    if (number != unchanged) {
      *one = units_of(number);
    }
    if (*one > account_units_max) {
      const bool is_of_gpu = index < 2;
      return {is_of_gpu ? setting_fault::limit : setting_fault::host, account_units_max};
    }
    ++index;
  }
  if (settings.capacity == 0) {
    return {setting_fault::limit, account_units_max};
  }
  if (const std::uint64_t most = std::min(settings.capacity, gpu); settings.spare >= most) {
    return {setting_fault::spare, most};
  }
  return {};
}

}  // namespace gdev
