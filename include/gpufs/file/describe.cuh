// What an open file is: gfstat is made of this.
#pragma once

#include "gpufs/file/open_files.cuh"

namespace gpufs {

// The result of gfstat: the file as it was when it was opened.
struct file_status {
  std::uint64_t size;        // bytes
  std::int64_t modified_ns;  // since the epoch
  std::int64_t changed_ns;
  std::uint64_t inode;
  std::uint64_t device;
  std::uint32_t mode;  // st_mode
  std::uint32_t reserved;
};

}  // namespace gpufs

namespace gpufs::detail {

// As gfstat.
template <class Group>
GPUFS_HD std::int32_t describe_file(const Group& g, const mount_ref& fs, std::int32_t fd,
                                    file_status& status) {
  const found_file found = find_file(fs, g, fd, access_read | access_write);
  if (found.error != 0) return found.error;
  const open_file& f = fs.at<open_file>(fs.layout.files)[found.view.record];
  status = {found.view.size,
            f.modified_ns.load_relaxed(),
            f.changed_ns.load_relaxed(),
            f.inode.load_relaxed(),
            f.device.load_relaxed(),
            found.view.access & 0xffffu,
            0};
  return 0;
}

}  // namespace gpufs::detail
