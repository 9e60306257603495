// Copies out of mapped files, and into them, that may be truncated meanwhile: what then raises
// SIGBUS is an answer here, not the end of the program.
//
// guard_copies() puts a handler of SIGBUS in place, once for the process and for good. It acts only
// for a thread that is inside of copy_guarded(), and only for a fault of an address of the side
// that this guards. Any other SIGBUS goes to what was there before, as if the handler were not: a
// handler gets the same arguments, the signals of its mask blocked and its stack as it asked; the
// default action, and ignored faults, end the program as they would have.
//
// A program that puts a handler of its own in place later replaces this one. Then guard_copies()
// says no, and no more copies are made: mapped_writes asks it for each write, mapped_reads asks
// copies_are_guarded() for each read. A file that is truncated in the few milliseconds before that
// reaches the program's handler. Programs that set SIGBUS should do it before their first mount,
// call the handler that they found, or do without mappings (posix_backend_options,
// mount_options::maps_files).
#pragma once

#include <cstddef>

namespace gpufs {

// Whether copy_guarded() is guarded: puts the handler in place at the first call, and says whether
// it is still there. Thread-safe.
[[nodiscard]] bool guard_copies() noexcept;

// As guard_copies(), but asks the kernel only once for each tick of the coarse clock (1 to 10 ms)
// and thread.
[[nodiscard]] bool copies_are_guarded() noexcept;

// The side of a copy that may be missing.
enum class guarded { source, destination };

// Copies. False when a part of the guarded side was not there; then the destination holds a part of
// the bytes, in no particular order. Thread-safe. Only after guard_copies().
[[nodiscard]] bool copy_guarded(char* to, const char* from, std::size_t bytes,
                                guarded side = guarded::source) noexcept;

}  // namespace gpufs
