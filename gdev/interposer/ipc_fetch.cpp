#include "interposer/ipc_fetch.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/crash_point.hpp"
#include "base/file_descriptor.hpp"
#include "base/uncancelled.hpp"
#include "interposer/client.hpp"
#include "interposer/deadline.hpp"
#include "interposer/driver.hpp"

namespace gdev {

namespace {

using steady_clock = std::chrono::steady_clock;

/** Connects to the exporter of a handle, of this user. Returns an errno. */
int connect_to(const ipc_handle& which, file_descriptor& made,
               steady_clock::time_point deadline) noexcept {
  made = file_descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) {
    return errno;
  }
  socklen_t length = 0;
  const sockaddr_un address = ipc_address(which.socket, length);
  while (connect(made.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      return errno;
    }
    if (steady_clock::now() >= deadline) {  // its queue is full
      return ETIMEDOUT;
    }
    poll(nullptr, 0, 10);
  }
  ucred known{};
  socklen_t size = sizeof known;
  if (getsockopt(made.number(), SOL_SOCKET, SO_PEERCRED, &known, &size) != 0) {
    return errno;
  }
  // Another user may have taken the name of a process that is gone.
  return known.uid == geteuid() || geteuid() == 0 ? 0 : EPERM;
}

/** Receives an answer with its descriptors. Returns an errno. */
int receive(int from, ipc_answer& said, std::vector<file_descriptor>& files,
            steady_clock::time_point deadline) noexcept {
  for (;;) {
    iovec data{&said, sizeof said};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * ipc_answer::most)> control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t size = recvmsg(from, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (const int error = wait_for(from, POLLIN, deadline); error != 0) {
        return error;
      }
      continue;
    }
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    if (size > 0 && rights != nullptr && rights->cmsg_level == SOL_SOCKET &&
        rights->cmsg_type == SCM_RIGHTS) {
      const std::size_t bytes = rights->cmsg_len - CMSG_LEN(0);
      for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(rights) + at, sizeof number);
        files.emplace_back(number);
      }
    }
    const bool is_right = size == sizeof said && said.magic == ipc_handle::magic_value &&
                          said.count == files.size() && said.chunks <= ~std::uint32_t{0};
    return size < 0 ? errno : is_right ? 0 : EPROTO;
  }
}

}  // namespace

void release_all(std::vector<imported_chunk>& chunks) noexcept {
  for (imported_chunk& one : chunks) {
    if (const auto handle = std::exchange(one.handle, 0); handle != 0) {
      static_cast<void>(call_driver<CUresult>(id_cuMemRelease, handle));
    }
  }
}

CUresult fetch(const ipc_handle& which, std::vector<imported_chunk>& made) noexcept {
  const uncancelled whole;
  const steady_clock::time_point deadline = steady_clock::now() + answer_timeout;
  file_descriptor exporter;
  if (connect_to(which, exporter, deadline) != 0) {
    return CUDA_ERROR_MAP_FAILED;
  }
  for (std::uint64_t chunks = 1; made.size() < chunks;) {
    const ipc_request asked{ipc_handle::magic_value, which.token, which.id, made.size()};
    ipc_answer said;
    std::vector<file_descriptor> files;
    if (send(exporter.number(), &asked, sizeof asked, MSG_NOSIGNAL | MSG_DONTWAIT) !=
            sizeof asked ||
        receive(exporter.number(), said, files, deadline) != 0) {
      return CUDA_ERROR_MAP_FAILED;
    }
    if (said.error == EAGAIN && steady_clock::now() < deadline) {
      poll(nullptr, 0, 10);
      continue;
    }
    if (said.error != 0) {
      return said.error == EAGAIN ? CUDA_ERROR_MAP_FAILED : CUDA_ERROR_INVALID_HANDLE;
    }
    if (files.empty() || made.size() + files.size() > said.chunks) {
      return CUDA_ERROR_MAP_FAILED;
    }
    crash_point("chunks_received");
    chunks = said.chunks;
    for (std::size_t i = 0; i < files.size(); ++i) {
      CUmemGenericAllocationHandle handle = 0;
      void* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(files[i].number()));
      const CUresult result =
          call_driver<CUresult>(id_cuMemImportFromShareableHandle, &handle, number,
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      if (result != CUDA_SUCCESS) {
        return CUDA_ERROR_MAP_FAILED;
      }
      made.push_back({handle, said.bytes[i]});
    }
  }
  crash_point("chunks_imported");
  return CUDA_SUCCESS;
}

}  // namespace gdev
