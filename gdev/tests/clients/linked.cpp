/** A program that is linked with the driver's library: linked PTX */
#include "clients/work.hpp"

int main(int /*count*/, char** arguments) {
  const driver_calls calls{cuInit,
                           cuDevicePrimaryCtxRetain,
                           cuCtxSetCurrent,
                           cuMemAlloc,
                           cuMemFree,
                           cuMemsetD32,
                           cuMemcpyDtoH,
                           cuModuleLoadData,
                           cuModuleGetFunction,
                           cuLaunchKernel};
  print_status(compute(calls, arguments[1]));
}
