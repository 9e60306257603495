// Copies out of mapped files, and into them, that may be truncated meanwhile: what then raises SIGBUS is an answer here, not the end
// of the program.
//
// guard_copies() puts a handler of SIGBUS in place, once for the process and for good. It acts only for a thread that is
// inside of copy_guarded(), and only for a fault of an address of the side that this guards. Any other SIGBUS goes to what was
// there before, as if the handler were not: a handler gets the same arguments, the signals of its mask blocked and its
// stack as it asked; the default action, and ignored faults, end the program as they would have.
//
// A program that puts a handler of its own in place later replaces this one. Then guard_copies() says no, and whoever
// asks it now and then (mapped_reads does for each window, mapped_writes for each write) copies no more; a file that is truncated before that
// reaches the program's handler. Programs that set SIGBUS should do it before their first mount, or call the handler that
// they found.
#pragma once

#include <cstddef>

namespace gpufs {

// Whether copy_guarded() is guarded: puts the handler in place at the first call, and says whether it is still there.
// Thread-safe.
[[nodiscard]] bool guard_copies() noexcept;

// The side of a copy that may be missing.
enum class guarded { source, destination };

// Copies. False when a part of the guarded side was not there; then the destination holds a part of the bytes, in no
// particular order. Thread-safe. Only after guard_copies().
[[nodiscard]] bool copy_guarded(char* to, const char* from, std::size_t bytes, guarded side = guarded::source) noexcept;

}  // namespace gpufs
