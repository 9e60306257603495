// File systems that are interfaces of the kernel, by their statfs(2) type.
#pragma once

#include <linux/magic.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace gpufs {

// Their files are regular for stat(2), but reading or writing a file may have any effect:
// /proc/self/mem is this process's memory. The list lacks tmpfs, devtmpfs and hugetlbfs, whose
// regular files are data.
inline constexpr std::uint32_t kernel_file_systems[] = {
    PROC_SUPER_MAGIC, SYSFS_MAGIC, DEBUGFS_MAGIC, TRACEFS_MAGIC, SECURITYFS_MAGIC,
    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, BPF_FS_MAGIC, PSTOREFS_MAGIC, EFIVARFS_MAGIC,
    SELINUX_MAGIC, SMACK_MAGIC, DEVPTS_SUPER_MAGIC, BINFMTFS_MAGIC, NSFS_MAGIC,
    RDTGROUP_SUPER_MAGIC, XENFS_SUPER_MAGIC, BINDERFS_SUPER_MAGIC,
    // Not in linux/magic.h:
    0x62656570,  // configfs
    0x19800202,  // mqueue
    0x65735543,  // fusectl
    0x5a3c69f0,  // apparmorfs
    0x6e667364,  // nfsd
    0x67596969,  // rpc_pipefs
    0x0a647361,  // functionfs
    0x76a9f425,  // ocfs2_dlmfs: an open takes a lock of the cluster
    0x50494446,  // pidfs
    0x00009fa1,  // openpromfs
    0xaee71ee7,  // gadgetfs
    0x23c9b64e,  // spufs
    0x67321273,  // ibmasmfs
    0x6f70726f,  // oprofilefs
    AUTOFS_SUPER_MAGIC};

// `type`: statfs's f_type, which is signed on some architectures. All types have 32 bits.
constexpr bool is_kernel_file_system(std::uint32_t type) {
  return std::ranges::find(kernel_file_systems, type) != std::end(kernel_file_systems);
}

}  // namespace gpufs
