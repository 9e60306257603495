#include "api/stage.hpp"

#include <gtest/gtest.h>

namespace gpufs::testing {

stage::stage(const mount& m, group_kind kind, std::uint32_t groups, void* stream)
    : mount_(m), kind_(kind), stream_(stream), registers_(m, std::size_t{groups} * register_count) {
  registers_.upload(std::vector<std::int64_t>(registers_.size(), -1));
}

performance stage::run(const std::vector<script>& scripts, const std::string& input, std::size_t output_bytes) {
  std::vector<device_call> calls;
  std::vector<std::uint32_t> first{0};
  for (const script& s : scripts) {
    calls.insert(calls.end(), s.begin(), s.end());
    first.push_back(static_cast<std::uint32_t>(calls.size()));
  }
  const device_buffer<device_call> calls_there(mount_, calls);
  const device_buffer<std::uint32_t> first_there(mount_, first);
  const device_buffer<char> input_there(mount_, std::vector<char>(input.begin(), input.end()));
  const device_buffer<char> output_there(mount_, std::vector<char>(output_bytes, untouched));
  const device_buffer<outcome> outcomes_there(mount_, calls.size());
  const device_buffer<std::uint32_t> disagreements(mount_, 1);
  launch_scripts(mount_, kind_,
                 {calls_there.data(), first_there.data(), registers_.data(), outcomes_there.data(), input_there.data(),
                  output_there.data(), disagreements.data(), static_cast<std::uint32_t>(scripts.size())},
                 stream_);

  const std::vector<outcome> all = outcomes_there.download();
  EXPECT_EQ(disagreements.download().front(), 0u) << "members that got another result than their leader";
  performance p;
  for (std::size_t g = 0; g < scripts.size(); ++g) p.outcomes.emplace_back(all.begin() + first[g], all.begin() + first[g + 1]);
  const std::vector<char> output = output_there.download();
  p.output.assign(output.begin(), output.end());
  return p;
}

std::uint64_t add_string(std::string& input, const std::string& text) {
  const std::uint64_t at = input.size();
  input.append(text.c_str(), text.size() + 1);
  return at;
}

}  // namespace gpufs::testing
