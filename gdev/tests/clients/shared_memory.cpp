/**
 * A program that shares memory by keys as it is told to, line by line. It is not linked with gdev.
 *
 * Each line is answered by one: "ok", with numbers where there are some, or "error N": an errno, or
 * CUDA's error of init, alloc, info, fill and check.
 *
 *   init                   cuInit, and the primary context
 *   get KEY BYTES FLAGS    gshmget(): the id
 *   at ID FLAGS            gshmat(): the address
 *   dt ADDRESS             gshmdt()
 *   stat ID                key, bytes, attachments, owner, group, mode, creator, last process
 *   set ID USER GROUP MODE, rm ID
 *   paper KEY BYTES        cuShmGet(), cuShmAt(), cuShmCtl(): the address of a new segment
 *   churn KEY TIMES        makes, attaches, fills, detaches and removes a segment of 2 MiB
 *   alloc BYTES, info      cuMemAlloc(); cuMemGetInfo(): free and total
 *   fill ADDRESS VALUE BYTES; check ADDRESS VALUE BYTES: "ok 1" if all 4-byte numbers are VALUE
 *   reset                  cuDevicePrimaryCtxReset
 *   fork                   the child answers from now on
 */
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "gdev/shared_memory.h"

namespace {

int init() {
  CUcontext context = nullptr;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) {
    result = cuDevicePrimaryCtxRetain(&context, 0);
  }
  return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

int describe(int id, std::ostream& said) {
  gshm_ds found;
  const int result = gshmctl(id, IPC_STAT, &found);
  if (result == 0) {
    said << found.key << ' ' << found.bytes << ' ' << found.attachments << ' ' << found.uid << ' '
         << found.gid << ' ' << found.mode << ' ' << found.creator_pid << ' ' << found.last_pid;
  }
  return result;
}

int use_paper_names(std::int64_t key, std::size_t bytes, std::ostream& said) {
  int id = 0;
  CUdeviceptr address = 0;
  CUresult result = cuShmGet(&id, key, bytes, IPC_CREAT | IPC_EXCL | 0600);
  if (result == CUDA_SUCCESS) {
    result = cuShmAt(&address, id, 0);
  }
  if (result == CUDA_SUCCESS) {
    result = cuShmCtl(id, IPC_RMID, nullptr);
  }
  said << address;
  return result;
}

int churn(std::int64_t key, int times) {
  constexpr std::size_t bytes = std::size_t{2} << 20;
  for (int i = 0; i < times; ++i) {
    CUdeviceptr address = 0;
    const int id = gshmget(key, bytes, IPC_CREAT | 0600);
    int result = id < 0 ? id : gshmat(id, &address, 0);
    if (result == 0 && cuMemsetD32(address, static_cast<unsigned>(i), bytes / 4) != CUDA_SUCCESS) {
      result = -EIO;
    }
    if (result == 0) {
      result = gshmdt(address);
    }
    if (result == 0) {
      result = gshmctl(id, IPC_RMID, nullptr);
    }
    // Another program makes and removes the same segment.
    if (result < 0 && result != -EIDRM) {
      return result;
    }
  }
  return 0;
}

/** Does what a line says. Returns 0 or an error; writes what to print after "ok". */
int obey(const std::string& line, std::ostream& said) {
  std::istringstream words(line);
  std::string kind;
  std::int64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;
  std::uint64_t d = 0;
  words >> kind >> a >> b >> c >> d;
  const int id = static_cast<int>(a);
  const auto address = static_cast<CUdeviceptr>(a);
  if (kind == "init") {
    return init();
  }
  if (kind == "get") {
    const int result = gshmget(a, b, static_cast<int>(c));
    said << result;
    return std::min(result, 0);
  }
  if (kind == "at") {
    CUdeviceptr attached = 0;
    const int result = gshmat(id, &attached, static_cast<int>(b));
    said << attached;
    return result;
  }
  if (kind == "dt") {
    return gshmdt(address);
  }
  if (kind == "stat") {
    return describe(id, said);
  }
  if (kind == "set") {
    gshm_ds wanted{};
    wanted.uid = static_cast<uid_t>(b);
    wanted.gid = static_cast<gid_t>(c);
    wanted.mode = static_cast<std::uint32_t>(d);
    return gshmctl(id, IPC_SET, &wanted);
  }
  if (kind == "rm") {
    return gshmctl(id, IPC_RMID, nullptr);
  }
  if (kind == "paper") {
    return use_paper_names(a, b, said);
  }
  if (kind == "churn") {
    return churn(a, static_cast<int>(b));
  }
  if (kind == "alloc") {
    CUdeviceptr made = 0;
    const CUresult result = cuMemAlloc(&made, static_cast<std::size_t>(a));
    said << made;
    return result;
  }
  if (kind == "info") {
    std::size_t free = 0;
    std::size_t total = 0;
    const CUresult result = cuMemGetInfo(&free, &total);
    said << free << ' ' << total;
    return result;
  }
  if (kind == "fill") {
    const CUresult result = cuMemsetD32(address, static_cast<unsigned>(b), c / sizeof(unsigned));
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
  }
  if (kind == "check") {
    std::vector<unsigned> copied(c / sizeof(unsigned));
    const CUresult result = cuMemcpyDtoH(copied.data(), address, c);
    said << std::all_of(copied.begin(), copied.end(), [&](unsigned one) { return one == b; });
    return result;
  }
  return kind == "reset" ? cuDevicePrimaryCtxReset(0) : -EINVAL;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "fork") {
      if (const pid_t child = fork(); child > 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return status;
      }
      std::cout << "ok " << getpid() << std::endl;
      continue;
    }
    std::ostringstream said;
    const int result = obey(line, said);
    if (result == 0) {
      std::cout << "ok " << said.str() << std::endl;
    } else {
      std::cout << "error " << std::abs(result) << std::endl;
    }
  }
}
