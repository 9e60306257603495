#include "interposer/get_proc_address.hpp"

#include <atomic>

#include "interposer/driver.hpp"
#include "interposer/gated_calls.hpp"
#include "interposer/unknown_names.hpp"
#include "interposer/wrappers.hpp"

namespace gdev {

namespace {

std::atomic<std::uint64_t> lookup_count;

/** Puts a wrapper in place of the driver's function, if there is one. */
void substitute(const char* symbol, void** function) noexcept {
  lookup_count.fetch_add(1, std::memory_order_relaxed);
  if (symbol == nullptr || function == nullptr || *function == nullptr) {
    return;
  }
  const int id = function_at(*function, symbol);
  if (id < 0) {
    unknown_names().add(symbol);
    note_unknown_function(symbol);
  } else if (void* const wrapper = wrapper_of(static_cast<function_id>(id)); wrapper != nullptr) {
    *function = wrapper;
  }
}

}  // namespace

std::uint64_t lookups() noexcept { return lookup_count.load(std::memory_order_relaxed); }

CUresult get_proc_address(const char* symbol, void** function, int version,
                          cuuint64_t flags) noexcept {
  const CUresult result =
      call_driver<CUresult>(id_cuGetProcAddress, symbol, function, version, flags);
  if (result == CUDA_SUCCESS) {
    substitute(symbol, function);
  }
  return result;
}

CUresult get_proc_address_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) noexcept {
  const CUresult result =
      call_driver<CUresult>(id_cuGetProcAddress_v2, symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS) {
    substitute(symbol, function);
  }
  return result;
}

}  // namespace gdev
