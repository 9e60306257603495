/**
 * Device memory that processes share by keys, with the rules of shmget(). C, and C++.
 *
 * A process makes a segment of device memory under a key, or finds the one that is there. It
 * attaches the segment and gets an address in its GPU's address space. The segment outlives the
 * process that made it: it exists until it is removed (IPC_RMID) and nobody has it attached, or
 * until the daemon ends.
 *
 * The functions need no library. They look up those of gdev's library, which a program under gdev
 * has been started with; without it they return -ENOSYS. Programs that cannot include this header
 * find the four g... functions by dlsym().
 *
 * All return a negative errno on error. Of all: -ENOSYS: the program does not run under gdev;
 * -ENODEV: it has not called cuInit(), or has no current context where one is needed; -ENOTCONN:
 * the daemon does not answer, or has ended; -EIO: the driver failed. Any thread may call them. A
 * call waits for the daemon at most some seconds.
 *
 * Who may do what is decided by the user and the group of the process, as of files: supplementary
 * groups do not count. Root may do everything. Locks are the program's own affair.
 */
#ifndef GDEV_SHARED_MEMORY_H
#define GDEV_SHARED_MEMORY_H

#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A segment, as IPC_STAT reports it. There are no times. */
typedef struct gshm_ds {
  int64_t key;
  /** As the creator asked. The memory itself is a multiple of the GPU's granularity, 2 MiB. */
  uint64_t bytes;
  uint64_t attachments;
  /** Owner; IPC_SET changes it. */
  uid_t uid;
  gid_t gid;
  uid_t creator_uid;
  gid_t creator_gid;
  /** As of a file, 9 bits; IPC_SET changes them. SHM_DEST: it is removed, and attached still. */
  uint32_t mode;
  pid_t creator_pid;
  /** The process that attached or detached last, or 0. */
  pid_t last_pid;
  /** The virtual GPU that the memory is charged to: that of its creator. */
  char vgpu[32];
} gshm_ds;

#ifdef GDEV_SHARED_MEMORY_EXPORTED
#define GDEV_SHARED_MEMORY_CALL(name, types, values) \
  __attribute__((visibility("default"))) int name types;
#else
#define GDEV_SHARED_MEMORY_CALL(name, types, values)                             \
  static inline int name types {                                                 \
    void* const found = dlsym((void*)0 /* RTLD_DEFAULT */, #name);               \
    return found == (void*)0 ? -ENOSYS : (__extension__(int(*) types)found)values; \
  }
#endif

/**
 * Returns the id of a key's segment. Makes one if there is none and flags have IPC_CREAT, or if the
 * key is IPC_PRIVATE (0): on the GPU of the current context, which it needs. New memory is zero.
 *
 * bytes: at most the segment's; of a new one more than zero. flags: IPC_CREAT, IPC_EXCL, and 9 mode
 * bits: those of a new segment, or what the caller wants to do with one that is there.
 *
 * A new segment counts for the virtual GPU of this process, as long as it exists.
 *
 * -ENOENT: none has the key, without IPC_CREAT. -EEXIST: one has, with IPC_CREAT and IPC_EXCL.
 * -EACCES: its mode. -EINVAL: it is smaller; a new one without bytes; other flags. -ENOMEM: the
 * limit of the virtual GPU, or the GPU. -ENOSPC: there are 1024 segments, 256 of
 * this user, or the daemon has no descriptors left.
 */
GDEV_SHARED_MEMORY_CALL(gshmget, (int64_t key, size_t bytes, int flags), (key, bytes, flags))

/**
 * Attaches a segment in the current context, and stores its address: each time another.
 *
 * flags: SHM_RDONLY: kernels and copies may only read; or 0. Returns 0.
 *
 * -EINVAL: there never was such an id; other flags. -EIDRM: it is removed. -EACCES: its mode.
 * -ENOMEM: no addresses are left. -ENOTSUP: the driver has no read-only mappings.
 */
GDEV_SHARED_MEMORY_CALL(gshmat, (int id, CUdeviceptr* address, int flags), (id, address, flags))

/**
 * Detaches what gshmat() attached; waits for the work of its context first. Returns 0.
 *
 * The end of a context, and of a process, detaches too. A forked child has nothing attached.
 * -EINVAL: nothing is attached there.
 */
GDEV_SHARED_MEMORY_CALL(gshmdt, (CUdeviceptr address), (address))

/**
 * IPC_STAT: fills in the buffer. IPC_SET: sets owner and mode from it. IPC_RMID: removes the
 * segment: its key is free at once, nobody can attach it any more, and its memory is freed when the
 * last one has detached it. Returns 0.
 *
 * -EACCES: IPC_STAT of a segment that the user may not read. -EPERM: IPC_SET, IPC_RMID by another
 * than its owner, its creator, root and the daemon's user. -EINVAL: another command; no such id; no
 * buffer. -EIDRM: it is removed.
 */
GDEV_SHARED_MEMORY_CALL(gshmctl, (int id, int command, gshm_ds* buffer), (id, command, buffer))

#undef GDEV_SHARED_MEMORY_CALL

#ifndef GDEV_SHARED_MEMORY_EXPORTED

/* The names of the Gdev paper (ATC 2012, section 4.2), with the driver's errors. */

static inline CUresult gdev_shm_result(int result) {
  switch (result) {
    case -EINVAL:
    case -EIDRM:
    case -EEXIST: return CUDA_ERROR_INVALID_VALUE;
    case -ENOENT: return CUDA_ERROR_NOT_FOUND;
    case -ENOMEM:
    case -ENOSPC: return CUDA_ERROR_OUT_OF_MEMORY;
    case -EACCES:
    case -EPERM: return CUDA_ERROR_NOT_PERMITTED;
    case -ENOSYS: return CUDA_ERROR_NOT_SUPPORTED;
    case -ENODEV: return CUDA_ERROR_INVALID_CONTEXT;
    case -ENOTCONN: return CUDA_ERROR_SYSTEM_NOT_READY;
    default: return result < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  }
}

/** gshmget(); stores the id. */
static inline CUresult cuShmGet(int* id, int64_t key, size_t bytes, int flags) {
  const int result = gshmget(key, bytes, flags);
  if (result >= 0) {
    *id = result;
  }
  return gdev_shm_result(result);
}

static inline CUresult cuShmAt(CUdeviceptr* address, int id, int flags) {
  return gdev_shm_result(gshmat(id, address, flags));
}

static inline CUresult cuShmDt(CUdeviceptr address) { return gdev_shm_result(gshmdt(address)); }

static inline CUresult cuShmCtl(int id, int command, gshm_ds* buffer) {
  return gdev_shm_result(gshmctl(id, command, buffer));
}

#endif

#ifdef __cplusplus
}
#endif

#endif
