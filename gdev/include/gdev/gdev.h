/**
 * The calls of the Gdev paper (ATC 2012, section 3: the "Gdev API") on CUDA's driver. C, and C++.
 *
 * Link with libgdev.so (CMake: gpufs::gdev). It opens the driver at run time, so a program needs no
 * CUDA library to link with. The calls work with and without gdev: under `gdev run` the program has
 * the limits and the turns of its virtual GPU, as all programs have. Only gshmget() and its family
 * (gdev/shared_memory.h, included here) need `gdev run`; without it they return -ENOSYS.
 *
 * All return 0, a number where it says so, or a negative errno. Of all calls with a handle: -EBADF:
 * it is not open. Of all: -ENODEV: there is no driver, or no such GPU; -ENOTCONN: the daemon of
 * gdev does not answer; -EIO: the driver or a kernel failed, and after a kernel all later calls of
 * the process fail. Any thread may call them, also with one handle.
 *
 * The work of a handle runs in the order in which it was submitted. That of two handles may
 * overlap. "Waits" means: for the GPU's work, however long it takes, and for the program's turn.
 *
 * gpufs has functions of some of these names for device code, in its namespace and with other
 * parameters. A source can include both headers.
 */
#ifndef GDEV_GDEV_H
#define GDEV_GDEV_H

#include "gdev/shared_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/** An open GPU: from 1 on. Numbers are not used twice, so a closed handle stays closed. */
typedef int ghandle;

/**
 * A kernel and how to launch it.
 *
 * image: PTX, a cubin or a fatbin, of image_bytes bytes. A handle loads it at its first launch,
 * finds it by its bytes later, and keeps it until gclose(). Nothing here needs to outlive the call.
 */
typedef struct gkernel {
  const void* image;
  size_t image_bytes;
  /** The kernel's name in the image: of C++ kernels without extern "C" the mangled one. */
  const char* entry;
  /** Blocks, and threads of a block, in x, y and z: each at least 1. */
  unsigned grid[3];
  unsigned block[3];
  /** Dynamic shared memory of a block, in bytes: at most 48 KiB. */
  unsigned shared_bytes;
  /** The address of each parameter's value. */
  void* const* parameters;
  size_t parameter_count;
} gkernel;

/** Names an allocation to other processes of this machine: 72 bytes, to be sent by any means. */
typedef struct gname {
  CUipcMemHandle memory;
  uint64_t bytes;
} gname;

/* --- Handles --- */

/** Stores the number of GPUs that the program sees. */
int gdevice_count(int* count);

/**
 * Opens a GPU. Returns its handle.
 *
 * minor: the GPU's number as the program sees it, from 0. In the paper it chooses the virtual GPU
 * (section 6); here `gdev run --vgpu` chooses that, for the whole program.
 *
 * Handles of a GPU share its primary context, which CUDA's runtime uses too: an address is valid
 * for all of them. A forked child has no handles.
 *
 * -ENODEV: there is no such GPU. -ENOMEM: it has no memory for a context.
 */
ghandle gopen(int minor);

/**
 * Closes a handle. Waits for its work, and for calls of other threads that use it.
 *
 * Frees all that was allocated by it and unloads its kernels, also if it returns -EIO: then some of
 * its work failed. The end of the process does the same.
 */
int gclose(ghandle handle);

/**
 * Makes the GPU's context current in this thread, for gshmget(), gshmat() and calls of CUDA. The
 * calls here do not need it. -1: no context is current. Do so before the last gclose() of the GPU.
 */
int guse(ghandle handle);

/* --- Memory --- */

/**
 * Allocates device memory, and stores its address. It is not set.
 *
 * Under gdev it may wait for the program's turn. -EINVAL: no bytes, or no place for the address.
 * -ENOMEM: the limit of the virtual GPU, or the GPU.
 */
int gmalloc(ghandle handle, CUdeviceptr* address, size_t bytes);

/** Frees what gmalloc() allocated. Waits for the handle's work. -EINVAL: not by this handle. */
int gfree(ghandle handle, CUdeviceptr address);

/**
 * Allocates pinned host memory, and stores its address. Copies from and to it are fast, and need
 * not wait. -EINVAL: as of gmalloc(). -ENOMEM: the host has no more.
 */
int gmalloc_dma(ghandle handle, void** buffer, size_t bytes);

/** Frees what gmalloc_dma() allocated. Waits for the handle's work. -EINVAL: not by this handle. */
int gfree_dma(ghandle handle, void* buffer);

/**
 * Stores the address by which kernels reach pinned host memory. -EINVAL: the pointer is not into
 * memory of gmalloc_dma() of this handle.
 */
int gvirtget(ghandle handle, const void* pointer, CUdeviceptr* address);

/* --- Copies: sizes in bytes --- */

/**
 * Copies from the host to the device, from the device to the host, or in the device; waits for it,
 * and for the handle's earlier work.
 *
 * Device memory is of gmalloc(), gref(), gshmat() or of CUDA. -EINVAL: a null address; a range that
 * ends past an allocation of this handle; the driver refuses the addresses.
 */
int gmemcpy_to_device(ghandle handle, CUdeviceptr to, const void* from, size_t bytes);
int gmemcpy_from_device(ghandle handle, void* to, CUdeviceptr from, size_t bytes);
int gmemcpy(ghandle handle, CUdeviceptr to, CUdeviceptr from, size_t bytes);

/**
 * The same without waiting, if the host's memory is of gmalloc_dma(); other memory may make the
 * call wait. The host's memory must stay as it is until the copy has ended.
 *
 * Stores the id of the copy for gsync(); id may be null. Ids of a handle count from 1.
 */
int gmemcpy_to_device_async(ghandle handle, CUdeviceptr to, const void* from, size_t bytes,
                            uint64_t* id);
int gmemcpy_from_device_async(ghandle handle, void* to, CUdeviceptr from, size_t bytes,
                              uint64_t* id);
int gmemcpy_async(ghandle handle, CUdeviceptr to, CUdeviceptr from, size_t bytes, uint64_t* id);

/* --- Kernels --- */

/**
 * Launches a kernel; does not wait for it. The first launch of an image waits until it is loaded.
 *
 * Stores the launch's id for gsync(); id may be null. The parameters' values are copied.
 *
 * -EINVAL: a null pointer; a zero in grid or block; another number of parameters than the kernel
 * has (known to drivers of CUDA 12.4 and later); the GPU cannot run such blocks. -ENOEXEC: the
 * image is none, or not for this GPU. -ENOENT: it has no such entry. -ENOMEM: no memory to load it.
 */
int glaunch(ghandle handle, const gkernel* kernel, uint64_t* id);

/**
 * Waits for a copy or a launch, and for the handle's work before it. timeout_ns: so long at most,
 * in nanoseconds; 0: not at all; negative: until it has ended.
 *
 * -EINVAL: no call of this handle stored the id. -ETIMEDOUT: it has not ended; it goes on.
 */
int gsync(ghandle handle, uint64_t id, int64_t timeout_ns);

/** Waits for all of the handle's work. */
int gbarrier(ghandle handle);

/* --- Facts and settings --- */

enum {
  /** Bytes of device memory that the program may have: the virtual GPU's limit, or the GPU's. */
  GQUERY_MEMORY_BYTES = 1,
  /** Bytes that are free of it. */
  GQUERY_MEMORY_FREE_BYTES = 2,
  /** Compute capability: 10 times the major number, and the minor one. */
  GQUERY_COMPUTE_CAPABILITY = 3,
  GQUERY_MULTIPROCESSORS = 4
};

/** Stores a fact about the GPU. -EINVAL: another type; no place for the result. */
int gquery(ghandle handle, unsigned type, uint64_t* result);

enum {
  /**
   * Copies from and to the host are submitted in pieces of so many bytes: a multiple of 4096. A
   * turn of the program may end between two. 0: whole, the default. (Paper: section 6, chunk size.)
   */
  GTUNE_MEMCPY_CHUNK_BYTES = 1
};

/** Changes a setting of this handle. -EINVAL: another type, as the driver has no such setting; the
 * value. */
int gtune(ghandle handle, unsigned type, uint64_t value);

/* --- Memory of other processes --- */

/**
 * Fills in a name of memory that gmalloc() of this handle allocated: here is the beginning. Anybody
 * who has the name and may use CUDA's IPC with this process can reach the memory. Under gdev that
 * is the same user and root; both processes must run under gdev, or none.
 *
 * Named memory stays on the GPU until it is freed. -EINVAL: not by this handle; no place for it.
 * -ENOTSUP: the driver has no IPC here.
 */
int gexport(ghandle handle, CUdeviceptr address, gname* name);

/**
 * Attaches memory of another process by its name, and stores its address here.
 *
 * Under gdev it asks the other process, for 2 s at most, and the memory stays until gunref(), also
 * if that process frees it or ends. Without gdev CUDA leaves that undefined. Each gref() needs a
 * gunref().
 *
 * -EINVAL: a null pointer; the name is none, or of memory that was freed; it is of this process,
 * whose addresses all its handles can use; it claims more bytes than there are. -ENXIO: the process
 * has ended, does not answer, is another user's, or runs under gdev and this one does not.
 */
int gref(ghandle handle, const gname* name, CUdeviceptr* address);

/** Detaches it again. Waits for the handle's work. -EINVAL: not attached by this handle. */
int gunref(ghandle handle, CUdeviceptr address);

#ifdef __cplusplus
}
#endif

#endif
