// Copies from and to mapped files that may be truncated meanwhile. A missing page then makes the
// copy return false, where SIGBUS would end the program.
//
// guard_copies() installs a handler of SIGBUS, once for the process and for good. The handler acts
// only for a thread inside copy_guarded(), and only for a fault at an address of the guarded side.
// It passes any other SIGBUS to the previous action, as if it were not there. A previous handler
// gets the same arguments, with its mask blocked and on its stack. The default action, and ignored
// faults, end the program as before.
//
// A program that installs its own handler later replaces this one. Then guard_copies() returns
// false, and no more copies are made: mapped_writes calls it for each write, mapped_reads calls
// copies_are_guarded() for each read. If a file is truncated in the few milliseconds before that
// check, the fault reaches the program's handler. A program that handles SIGBUS should install its
// handler before its first mount, call the handler that it found, or use no mappings
// (posix_backend_options, mount_options::maps_files).
//
// Any thread may call these functions. They take no locks.
#pragma once

#include <cstddef>

namespace gpufs {

// Whether copy_guarded() is guarded. The first call installs the handler; each call checks that it
// is still installed. Thread-safe.
[[nodiscard]] bool guard_copies() noexcept;

// As guard_copies(), but each thread checks only once per tick of the coarse clock (1 to 10 ms).
[[nodiscard]] bool copies_are_guarded() noexcept;

// The side of a copy that may be missing.
enum class guarded { source, destination };

// Copies `bytes` bytes. Returns false when a part of the guarded side was missing, or when too many
// threads copy. The destination then has some of the bytes, in no particular order. Thread-safe.
// Call it only after guard_copies() has returned true.
[[nodiscard]] bool copy_guarded(char* to, const char* from, std::size_t bytes,
                                guarded side = guarded::source) noexcept;

}  // namespace gpufs
