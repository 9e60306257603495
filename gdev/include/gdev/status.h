/**
 * What a program that runs under gdev can ask about itself. C, and C++.
 *
 * gdev's library exports gdev_status(). A program finds it with dlsym(RTLD_DEFAULT, "gdev_status"): it is
 * null if the program does not run under gdev.
 */
#ifndef GDEV_STATUS_H
#define GDEV_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gdev_status_t {
  /** Bytes of this structure: set by the caller. Later versions add fields at the end. */
  size_t size;
  /** The driver's file; empty if there is none. */
  const char* driver;
  /** Kernels and graphs that were launched, and launches that failed. */
  uint64_t launches;
  /** Functions that cuGetProcAddress() found. */
  uint64_t lookups;
  /** Driver functions that were asked for and that gdev does not know; they were passed on. */
  uint64_t unknown_functions;
  /** How often the driver was loaded past gdev, into a name space of its own (dlmopen). */
  uint64_t bypasses;
} gdev_status_t;

/**
 * Fills in the first status->size bytes. Any thread may call it. The first call may look for the driver's file.
 *
 * Returns 0, or -EINVAL if status is null or its size is not that of a known version.
 */
int gdev_status(gdev_status_t* status);

/** Returns the name of an unknown function: the first 64 have one. Null past the last. */
const char* gdev_unknown_function(size_t index);

#ifdef __cplusplus
}
#endif

#endif
