// Where scripts run: memory on the mount's device, one launch, and what came back.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "api/script.hpp"
#include "support/device.hpp"

namespace gpufs::testing {

using script = std::vector<device_call>;  // of one group

// Byte of the output that no call has written.
inline constexpr char untouched = static_cast<char>(0xa5);

struct performance {
  std::vector<std::vector<outcome>> outcomes;  // [group][call]
  std::string output;
};

// Registers of a fixed number of groups, which live from launch to launch. One thread uses it at a
// time.
class stage {
 public:
  // `scratch_bytes`: see script_memory.
  stage(mount& m, group_kind kind, std::uint32_t groups, void* stream = nullptr,
        std::uint32_t scratch_bytes = 0);

  // From here on, calls give up after `request` in which the service lives, whatever the mount's
  // timeout is. Without the bulk path.
  void give_up_after(std::chrono::nanoseconds request);

  // Runs scripts[g] in group g and waits. `output_bytes` of memory are at the calls' disposal, and
  // come back. Fails the running test when members of a group got different results.
  performance run(const std::vector<script>& scripts, const std::string& input,
                  std::size_t output_bytes);

 private:
  mount& mount_;
  const group_kind kind_;
  void* const stream_;
  const std::uint32_t scratch_bytes_;
  device_array<std::int64_t> registers_;
  std::unique_ptr<device_array<mount_ref>> handle_;  // null: the mount's own
  std::unique_ptr<device_array<char>>
      memory_;  // all else that a launch needs; kept, because allocating takes long
};

// Adds a zero-terminated string to a script's input; returns where it is.
std::uint64_t add_string(std::string& input, const std::string& text);

}  // namespace gpufs::testing
