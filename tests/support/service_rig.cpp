#include "support/service_rig.hpp"

#include <algorithm>
#include <cstring>

namespace gpufs::testing {

service_rig::service_rig(std::shared_ptr<backend> io, const service_rig_options& o)
    : options_(o), memory_(o.slots, o.staging_bytes, o.write_bytes),
      files_(std::move(io), o.descriptors_max, o.read_only ? 0 : nodes_max, o.numbers),
      extents_(device_, files_, record_,
               extent_options{o.extent_budget_bytes, o.extent_bytes, o.extent_file_bytes_min,
                              o.extents_ahead}),
      service_(std::make_unique<gpufs::service>(
          device_, memory_.view(), memory_.view(),
          bulk_frames{frames_.data(), 12, frame_count, frames_.size()}, files_, extents_, sinks_,
          record_, service_options{o.workers, o.spin_ns, o.openers, std::max(o.workers, 2u)})) {}

service_rig::~service_rig() {
  service_.reset();
  files_.close_handed();
  (void)extents_.stop(deadline::after(deadline::never));
  extents_.drop_all();
}

rig_reply service_rig::call(const request& r, std::string_view staging) {
  rig_reply out;
  channel_client c = client();
  const std::int32_t acquired =
      c.acquire(r.code == request_code::write && staging.size() > options_.staging_bytes);
  if (acquired < 0) {
    out.result = acquired;
    out.abandoned = true;
    return out;
  }
  const auto slot = static_cast<std::uint32_t>(acquired);
  const channel_view view = memory_.view();
  char* const to = r.code == request_code::write ? view.write_staging(slot) : view.staging(slot);
  if (!staging.empty()) std::memcpy(to, staging.data(), staging.size());
  c.post(slot, r);
  const channel_client::answer answer = c.wait(slot, false, r.code == request_code::bulk);
  out.result = answer.result;
  out.abandoned = answer.abandoned;
  if (answer.abandoned) return out;
  const reply_record& reply = memory_.view().reply(slot);
  out.version = reply.version.load_relaxed();
  out.size = reply.size.load_relaxed();
  out.inode = reply.inode.load_relaxed();
  out.handle = reply.handle.load_relaxed();
  if (const std::uint32_t node = reply.node.load_relaxed(); node != no_node)
    out.node = node_name(node, out.version);
  if ((r.code == request_code::read || r.code == request_code::bulk) && answer.result > 0 &&
      (answer.result & hint_flag) != 0) {
    out.result &= ~hint_flag;
    out.extent_number = reply.extent_number.load_relaxed();
    out.extent_address = reply.extent_address.load_relaxed();
    out.extent_bytes = reply.extent_bytes.load_relaxed();
  }
  if (out.result > 0 && static_cast<std::uint32_t>(out.result) <= options_.staging_bytes) {
    out.bytes.assign(memory_.view().staging(slot), static_cast<std::size_t>(out.result));
  }
  c.release(slot);
  return out;
}

rig_reply service_rig::open(std::string_view path, std::uint64_t want, bool no_follow) {
  return call(
      {request_code::open, no_follow ? 1u : 0u, static_cast<std::uint32_t>(path.size()), want},
      path);
}
rig_reply service_rig::open_to_write(std::string_view path) {
  return call({request_code::open_write, open_reads | open_writes | open_creates,
               static_cast<std::uint32_t>(path.size()), 0644},
              path);
}
rig_reply service_rig::write(std::uint64_t node, std::uint64_t offset, std::string_view bytes) {
  return call({request_code::write, node, static_cast<std::uint32_t>(bytes.size()), offset}, bytes);
}
rig_reply service_rig::read(std::uint64_t handle, std::uint64_t offset, std::uint32_t length) {
  return call({request_code::read, handle, length, offset});
}
rig_reply service_rig::bulk(std::uint64_t handle, std::uint64_t offset, std::uint32_t length,
                            std::uint32_t frame) {
  const bulk_target to{frame};
  return call({request_code::bulk, handle, length, offset},
              std::string_view(reinterpret_cast<const char*>(&to), sizeof to));
}

rig_reply service_rig::close(std::uint64_t handle) {
  return call({request_code::close, handle, 0, 0});
}
rig_reply service_rig::send(std::int32_t sink, std::string_view bytes) {
  return call({request_code::send, static_cast<std::uint32_t>(sink),
               static_cast<std::uint32_t>(bytes.size()), 0},
              bytes);
}

}  // namespace gpufs::testing
