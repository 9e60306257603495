// The service of a mount without the mount: channel, file table, extents, sinks and workers over a
// backend of the test. Makes calls as device code does.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "device/device.hpp"
#include "gpufs/backend.hpp"
#include "service/service.hpp"
#include "support/channel_memory.hpp"
#include "support/fault_device.hpp"

namespace gpufs::testing {

struct service_rig_options {
  unsigned workers = 2;
  std::uint32_t slots = 8;
  std::uint32_t staging_bytes = 8192;
  std::uint32_t write_bytes = 0;  // size of wide slots; 0: there are none
  std::uint64_t spin_ns = 20'000;
  std::size_t descriptors_max = 64;
  std::uint64_t extent_budget_bytes = 0;
  std::uint64_t extent_bytes = 65536;
  std::uint64_t extent_file_bytes_min = 0;
  std::uint64_t extents_ahead = 0;
  bool openers = true;
  bool read_only = false;
  channel_timeouts timeouts{60'000'000'000};
  // The same in each run. They use all bytes of a handle, and of an inode state's name.
  file_table::numbering numbers{.first_generation = 0x29e8'd7c6'b5a4,
                                .first_version = 0x1234'5678'9abc};
};

// The answer to a request: the reply's fields, and as many staging bytes as the result says.
struct rig_reply {
  std::int32_t result = 0;
  bool abandoned = false;
  std::uint64_t version = 0, size = 0, inode = 0;
  std::uint64_t handle = 0, node = no_node;  // node_name()
  std::uint64_t extent_number = 0, extent_address = 0, extent_bytes = 0;
  std::string bytes;
};

// Calls are thread-safe.
class service_rig {
 public:
  service_rig(std::shared_ptr<backend> io, const service_rig_options& options = {});
  ~service_rig();

  rig_reply call(const request& r, std::string_view staging = {});
  // `want`: how many bytes may come with the reply.
  rig_reply open(std::string_view path, std::uint64_t want = 0, bool no_follow = false);
  rig_reply read(std::uint64_t handle, std::uint64_t offset, std::uint32_t length);
  // open_to_write() opens a file for changes, and creates it if necessary. write() writes some of
  // its bytes.
  rig_reply open_to_write(std::string_view path);
  rig_reply write(std::uint64_t node, std::uint64_t offset, std::string_view bytes);
  rig_reply close(std::uint64_t handle);
  rig_reply send(std::int32_t sink, std::string_view bytes);
  // Loads into frames(), beginning with `frame`.
  rig_reply bulk(std::uint64_t handle, std::uint64_t offset, std::uint32_t length,
                 std::uint32_t frame);

  static constexpr std::uint32_t nodes_max = 4096;
  static constexpr std::uint32_t frame_count = 16;
  static constexpr std::uint32_t frame_bytes = 4096;
  const std::string& frames() const { return frames_; }

  channel_memory& memory() { return memory_; }
  channel_client client() { return memory_.client(options_.timeouts); }
  file_table& files() { return files_; }
  fault_device& gpu() { return device_; }
  extent_registrar& extents() { return extents_; }
  sink_table& sinks() { return sinks_; }
  timeline& record() { return record_; }
  gpufs::service& workers() { return *service_; }

 private:
  const service_rig_options options_;
  fault_device device_;
  channel_memory memory_;
  std::string frames_ = std::string(std::size_t{frame_count} * frame_bytes, '?');
  file_table files_;
  timeline record_;
  extent_registrar extents_;
  sink_table sinks_;
  std::unique_ptr<gpufs::service> service_;
};

}  // namespace gpufs::testing
