#include "api/stage.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace gpufs::testing {

stage::stage(mount& m, group_kind kind, std::uint32_t groups, void* stream,
             std::uint32_t scratch_bytes)
    : mount_(m), kind_(kind), stream_(stream), scratch_bytes_(scratch_bytes),
      registers_(m, std::size_t{groups} * register_count) {
  registers_.upload(std::vector<std::int64_t>(registers_.size(), -1));
}

void stage::give_up_after(std::chrono::nanoseconds request) {
  mount_ref handle = mount_.ref(false);
  handle.timeouts.request_ns = static_cast<std::uint64_t>(request.count());
  handle_ = std::make_unique<device_array<mount_ref>>(mount_, std::vector<mount_ref>{handle});
}

performance stage::run(const std::vector<script>& scripts, const std::string& input,
                       std::size_t output_bytes) {
  std::vector<std::uint32_t> first{0};
  for (const script& s : scripts)
    first.push_back(first.back() + static_cast<std::uint32_t>(s.size()));

  // One piece of memory: what the kernel reads, then what it writes.
  std::size_t total = 0;
  const auto place = [&total](std::size_t bytes) {
    const std::size_t at = total;
    total += (bytes + 63) / 64 * 64;
    return at;
  };
  const std::size_t calls_at = place(first.back() * sizeof(device_call));
  const std::size_t first_at = place(first.size() * sizeof(std::uint32_t));
  const std::size_t input_at = place(input.size());
  const std::size_t outcomes_at = place(first.back() * sizeof(outcome));
  const std::size_t disagreements_at = place(sizeof(std::uint32_t));
  const std::size_t output_at = place(output_bytes);
  std::vector<char> image(total, 0);
  for (std::size_t g = 0; g < scripts.size(); ++g) {
    if (scripts[g].empty()) continue;
    std::memcpy(image.data() + calls_at + first[g] * sizeof(device_call), scripts[g].data(),
                scripts[g].size() * sizeof(device_call));
  }
  std::memcpy(image.data() + first_at, first.data(), first.size() * sizeof(std::uint32_t));
  std::memcpy(image.data() + input_at, input.data(), input.size());
  std::memset(image.data() + output_at, untouched, output_bytes);

  if (memory_ == nullptr || memory_->size() < total) {
    memory_.reset();
    memory_ = std::make_unique<device_array<char>>(mount_, total);
  }
  memory_->upload(image);
  char* there = memory_->data();
  launch_scripts(mount_, kind_,
                 {reinterpret_cast<const device_call*>(there + calls_at),
                  reinterpret_cast<const std::uint32_t*>(there + first_at), registers_.data(),
                  reinterpret_cast<outcome*>(there + outcomes_at), there + input_at,
                  there + output_at, reinterpret_cast<std::uint32_t*>(there + disagreements_at),
                  static_cast<std::uint32_t>(scripts.size()), scratch_bytes_,
                  handle_ == nullptr ? nullptr : handle_->data()},
                 stream_);
  mount_.synchronize();
  mount_.copy_to_host(image.data() + outcomes_at, there + outcomes_at, total - outcomes_at);

  std::uint32_t disagreements = 0;
  std::memcpy(&disagreements, image.data() + disagreements_at, sizeof disagreements);
  EXPECT_EQ(disagreements, 0u) << "members that got another result than their leader";
  performance p;
  for (std::size_t g = 0; g < scripts.size(); ++g) {
    std::vector<outcome>& outcomes = p.outcomes.emplace_back(scripts[g].size());
    if (outcomes.empty()) continue;
    std::memcpy(outcomes.data(), image.data() + outcomes_at + first[g] * sizeof(outcome),
                outcomes.size() * sizeof(outcome));
  }
  p.output.assign(image.data() + output_at, output_bytes);
  return p;
}

std::uint64_t add_string(std::string& input, const std::string& text) {
  const std::uint64_t at = input.size();
  input.append(text.c_str(), text.size() + 1);
  return at;
}

}  // namespace gpufs::testing
