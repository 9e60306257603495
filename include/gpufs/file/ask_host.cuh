// Requests to the host that carry no file bytes.
#pragma once

#include "gpufs/file/open_files.cuh"

namespace gpufs::detail {

// Sends one request with one or two paths, and returns the host's result. Collective.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t ask_about_paths(const mount_ref& fs, const Group g,
                                                        request_code code, const char* path,
                                                        const char* other) {
  std::int32_t result = 0;
  g.sync();
  if (g.is_leader()) {
    std::uint32_t lengths[2] = {0, 0};
    for (int i = 0; i < 2 && result >= 0; ++i) {
      const char* const p = i == 0 ? path : other;
      if (i == 1 && code != request_code::rename) break;
      result = length_of_path(p);
      if (result >= 0) lengths[i] = static_cast<std::uint32_t>(result);
    }
    if (result >= 0) {
      channel_client client = fs.client();
      result = client.acquire();
      if (result >= 0) {
        const auto channel_slot = static_cast<std::uint32_t>(result);
        char* const staging = fs.channel.staging(channel_slot);
        copy_to_host(this_thread(), staging, path, lengths[0]);
        std::uint32_t length = lengths[0];
        if (code == request_code::rename) {
          staging[length++] = 0;
          copy_to_host(this_thread(), staging + length, other, lengths[1]);
          length += lengths[1];
        }
        const request asked{code, 0, length, 0};
        result = client.ask(channel_slot, asked).result;
        // Also after an error, because an error does not say how far the host got. Open files are
        // reached by their descriptors from now on, and no longer by these paths. Release: pairs
        // with the acquire of an opener.
        (void)fs.at<name_state>(fs.layout.names)->epoch.fetch_add_release(1);
      }
    }
  }
  return g.broadcast(result);
}

}  // namespace gpufs::detail
