#include "gdev/status.h"

#include <cerrno>

#include "interposer/driver.hpp"
#include "interposer/gate.hpp"
#include "interposer/get_proc_address.hpp"
#include "interposer/loader.hpp"
#include "interposer/unknown_names.hpp"

#define GDEV_EXPORT __attribute__((visibility("default")))

GDEV_EXPORT int gdev_status(gdev_status_t* status) {
  if (status == nullptr || status->size != sizeof *status) {
    return -EINVAL;
  }
  status->driver = gdev::driver_path();
  status->launches = gdev::count_submissions(gdev::work::launch);
  status->lookups = gdev::lookups();
  status->unknown_functions = gdev::unknown_names().times();
  status->bypasses = gdev::bypasses();
  return 0;
}

GDEV_EXPORT const char* gdev_unknown_function(size_t index) {
  return gdev::unknown_names().at(index);
}
