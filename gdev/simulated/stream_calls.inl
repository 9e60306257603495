// The calls that use a default stream. queue_calls.cpp includes this twice, because the driver
// exports each of them twice: for the legacy default stream, and for one of each thread. It defines
// GDEV_PTDS(name), GDEV_PTSZ(name): the exported name; GDEV_PER_THREAD: false, then true.

GDEV_EXPORT(GDEV_PTSZ(cuStreamSynchronize), CUstream where) {
  the_device().wait(where, GDEV_PER_THREAD);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(GDEV_PTSZ(cuStreamQuery), CUstream where) {
  return the_device().is_idle(where, GDEV_PER_THREAD) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

GDEV_EXPORT(GDEV_PTSZ(cuStreamGetId), CUstream where, unsigned long long* number) {
  *number = the_device().number_of(where, GDEV_PER_THREAD);
  return gdev::simulated::has_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/** All contexts of a process share the streams. */
GDEV_EXPORT(GDEV_PTSZ(cuStreamGetCtx), CUstream /*where*/, CUcontext* found) {
  *found = gdev::simulated::current_context();
  return CUDA_SUCCESS;
}

GDEV_EXPORT(GDEV_PTSZ(cuStreamWaitEvent), CUstream where, CUevent which, unsigned /*flags*/) {
  if (!gdev::simulated::join_capture(where, live(which))) {
    the_device().wait_in(where, GDEV_PER_THREAD, live(which));
  }
  return CUDA_SUCCESS;
}

GDEV_EXPORT(GDEV_PTSZ(cuEventRecord), CUevent which, CUstream where) {
  if (!gdev::simulated::capture_record(live(which), where)) {
    the_device().record(live(which), where, GDEV_PER_THREAD);
  }
  return CUDA_SUCCESS;
}

GDEV_EXPORT(GDEV_PTDS(cuMemcpy), CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_and_wait(pointer<void>(to), pointer<void>(from), bytes, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemcpyAsync), CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
            CUstream where) {
  return copy(pointer<void>(to), pointer<void>(from), bytes, where, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTDS(cuMemcpyHtoD_v2), CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy_and_wait(pointer<void>(to), from, bytes, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTDS(cuMemcpyDtoH_v2), void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_and_wait(to, pointer<void>(from), bytes, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTDS(cuMemcpyDtoD_v2), CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_and_wait(pointer<void>(to), pointer<void>(from), bytes, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemcpyHtoDAsync_v2), CUdeviceptr to, const void* from, std::size_t bytes,
            CUstream where) {
  return copy(pointer<void>(to), from, bytes, where, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemcpyDtoHAsync_v2), void* to, CUdeviceptr from, std::size_t bytes,
            CUstream where) {
  return copy(to, pointer<void>(from), bytes, where, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemcpyDtoDAsync_v2), CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
            CUstream where) {
  return copy(pointer<void>(to), pointer<void>(from), bytes, where, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTDS(cuMemsetD8_v2), CUdeviceptr to, unsigned char value, std::size_t count) {
  return gdev::simulated::set(to, value, count, nullptr, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTDS(cuMemsetD32_v2), CUdeviceptr to, unsigned value, std::size_t count) {
  return gdev::simulated::set(to, value, count, nullptr, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemsetD8Async), CUdeviceptr to, unsigned char value, std::size_t count,
            CUstream where) {
  return gdev::simulated::set(to, value, count, where, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemsetD32Async), CUdeviceptr to, unsigned value, std::size_t count,
            CUstream where) {
  return gdev::simulated::set(to, value, count, where, GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemAllocAsync), CUdeviceptr* address, std::size_t bytes, CUstream where) {
  return gdev::simulated::capture_allocation(where, bytes, address)
             ? CUDA_SUCCESS
             : the_device().allocate(address, bytes);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemAllocFromPoolAsync), CUdeviceptr* address, std::size_t bytes,
            CUmemoryPool from, CUstream) {
  return gdev::simulated::allocate_from(from, address, bytes);
}

GDEV_EXPORT(GDEV_PTSZ(cuMemFreeAsync), CUdeviceptr address, CUstream) {
  return the_device().free(address);
}

GDEV_EXPORT(GDEV_PTSZ(cuLaunchKernel), CUfunction which, unsigned, unsigned, unsigned, unsigned,
            unsigned, unsigned, unsigned, CUstream where, void** parameters, void** /*extra*/) {
  return launch(reinterpret_cast<gdev::simulated::kernel>(which), parameters, where,
                GDEV_PER_THREAD);
}

GDEV_EXPORT(GDEV_PTSZ(cuLaunchKernelEx), const CUlaunchConfig* config, CUfunction which,
            void** parameters, void** /*extra*/) {
  return launch(reinterpret_cast<gdev::simulated::kernel>(which), parameters, config->hStream,
                GDEV_PER_THREAD);
}

/** Does nothing, but only with handles of this driver. */
GDEV_EXPORT(GDEV_PTSZ(cuMemMapArrayAsync), CUarrayMapInfo* wanted, unsigned count, CUstream) {
  CUmemAllocationProp unused{};
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    result = the_device().properties_of(&unused, wanted[i].memHandle.memHandle);
  }
  return result;
}
