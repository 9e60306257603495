/**
 * The exporting side of IPC: handles, and the thread that serves the chunks that they name.
 *
 * The thread starts with the first export. It listens on an abstract socket; the handle holds its
 * random name. It serves its own user and root, if they know the token of the handle. Each request
 * gets one answer, with some of the descriptors. The thread waits for no peer: an answer that a
 * peer does not take at once ends the connection, and so does silence for `answer_timeout`.
 */
#pragma once

#include <cuda.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace gdev {

/** What a CUipcMemHandle holds. Handles of one allocation are equal. */
struct ipc_handle {
  static constexpr std::uint64_t magic_value = 0x3143'5049'7665'6467;  // "gdevIPC1"

  std::uint64_t magic = magic_value;
  std::uint64_t socket = 0;  // its name
  std::array<std::uint64_t, 2> token{};
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;  // as allocated
  std::uint64_t pid = 0;    // for those who read a handle in a debugger
  std::uint64_t unused = 0;

  bool operator==(const ipc_handle&) const = default;
};
static_assert(sizeof(ipc_handle) == sizeof(CUipcMemHandle), "a handle is passed in the driver's");

/** Asks for the descriptors of an allocation, from a chunk on. */
struct ipc_request {
  std::uint64_t magic = ipc_handle::magic_value;
  std::array<std::uint64_t, 2> token{};
  std::uint64_t id = 0;
  std::uint64_t first = 0;
};

struct ipc_answer {
  /** Descriptors in one message. The kernel takes 253; fewer are open at a time. */
  static constexpr std::size_t most = 64;

  std::uint64_t magic = ipc_handle::magic_value;
  // errno. EACCES: the token is wrong; ENOENT: there is no such memory; EAGAIN: no descriptors now.
  std::uint32_t error = 0;
  std::uint32_t count = 0;   // descriptors that come with it
  std::uint64_t chunks = 0;  // of the allocation
  std::array<std::uint64_t, most> bytes{};
};

/** Returns the address of the socket of this name, and stores its length. */
[[nodiscard]] sockaddr_un ipc_address(std::uint64_t name, socklen_t& length) noexcept;

/**
 * Exports the allocation that begins here, which is wired already.
 *
 * Returns CUDA_ERROR_OPERATING_SYSTEM if the thread, or its socket, cannot be made. The caller
 * holds a submission.
 */
[[nodiscard]] CUresult export_memory(CUdeviceptr base, std::size_t bytes,
                                     ipc_handle& made) noexcept;

/** Tells whether a handle was made by this process. */
[[nodiscard]] bool is_own_handle(const ipc_handle& which) noexcept;

/** In a forked child. */
void forget_exports() noexcept;

}  // namespace gdev
