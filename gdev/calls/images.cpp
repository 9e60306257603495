#include "calls/images.hpp"

#include "calls/driver.hpp"

namespace gdev::calls {

namespace {

std::optional<std::size_t> count_parameters(CUfunction which) noexcept {
  if (driver().cuFuncGetParamInfo == nullptr) {
    return std::nullopt;
  }
  std::size_t count = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = driver().cuFuncGetParamInfo(which, count, &offset, &bytes)) == CUDA_SUCCESS) {
    ++count;
  }
  return result == CUDA_ERROR_INVALID_VALUE ? std::optional(count) : std::nullopt;
}

}  // namespace

int images::find(std::string_view bytes, const char* entry, loaded_kernel& found) noexcept {
  const std::lock_guard lock(mutex_);
  auto loaded = all_.find(bytes);
  if (loaded == all_.end()) {
    std::string kept(bytes);  // ends with a zero, as the driver expects of PTX
    image made;
    if (const CUresult result = driver().cuModuleLoadData(&made.module, kept.c_str());
        result != CUDA_SUCCESS) {
      // The image is all that the driver was given.
      return result == CUDA_ERROR_INVALID_VALUE ? -ENOEXEC : error_of(result);
    }
    loaded = all_.emplace(std::move(kept), std::move(made)).first;
  }
  auto& kernels = loaded->second.kernels;
  auto known = kernels.find(std::string_view(entry));
  if (known == kernels.end()) {
    loaded_kernel made;
    if (const CUresult result =
            driver().cuModuleGetFunction(&made.function, loaded->second.module, entry);
        result != CUDA_SUCCESS) {
      return error_of(result);
    }
    made.parameters = count_parameters(made.function);
    known = kernels.emplace(entry, made).first;
  }
  found = known->second;
  return 0;
}

void images::unload() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [bytes, one] : all_) {
    static_cast<void>(driver().cuModuleUnload(one.module));
  }
  all_.clear();
}

}  // namespace gdev::calls
