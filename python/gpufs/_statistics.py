"""What a mount counts, and the errors that it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict


class Statistics(TypedDict):
    """Counters of a mount since it began, over all multiprocessors; see :meth:`Mount.stats`."""

    hits: int  # pages found in the cache
    minor_faults: int  # pages that another group was loading at that moment
    direct_loads: int  # pages that the GPU copied from registered host memory
    staged_loads: int  # pages that a host worker loaded
    bulk_loads: int  # pages that the copy engine loaded, in runs
    open_loads: int  # pages that came with the answer to an open
    load_errors: int
    evictions: int  # pages evicted to make room for others
    reclaims: int  # evictions ahead of need (a part of `evictions`)
    lost_races: int  # loads abandoned because another group had begun the same load
    no_frames: int  # calls that ended in ENOBUFS
    direct_bytes: int  # file bytes loaded by the direct path
    staged_bytes: int  # file bytes loaded by the staged path
    bulk_bytes: int  # file bytes loaded by the bulk path
    open_bytes: int  # file bytes that came with an open
    read_bytes: int  # bytes returned to callers of gread
    opens: int  # opens that asked the host
    reopens: int  # opens of files that were already open: no round trip
    closes: int
    rpcs: int  # requests to the host
    rpc_wait_ns: int  # total time that groups waited for answers
    rpc_failures: int  # requests abandoned: the service died, or the deadline passed
    sent_bytes: int  # bytes sent to sinks
    written_bytes: int  # bytes taken from callers of gwrite
    write_backs: int  # dirty pages written to their files
    write_back_bytes: int  # the dirty bytes of these pages
    write_back_errors: int  # write requests that failed
    extents_registered: int  # ranges of files registered for direct loads
    extent_bytes: int  # bytes of these ranges
    # Ranges not registered: the budget was used up, the range was not in the host's page cache, or
    # the driver refused.
    extents_refused: int
    host_open_files: int
    requests_served: int
    # Entry b: major faults that took at least 2**b and less than 2**(b + 1) ns.
    fault_latency_ns: list[int]


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """One file that kernels have open now."""

    path: str  # as os.fsdecode returns it
    size: int  # bytes, at the open
    hits: int  # pages found in the cache since the open
    page_loads: int  # pages loaded, by any path
    direct_loads: int  # pages loaded out of registered pages, by the GPU or the copy engine
    loaded_bytes: int
    holders: int  # opens that are not closed yet
    extents: int  # ranges registered for direct loads


@dataclass(frozen=True, slots=True)
class FileError:
    """A failed host operation on a file."""

    path: str  # as os.fsdecode returns it
    errno: int
    operation: Literal["write-back", "sync", "close"]
    # The failure happened during the unmount. Nothing retries it, so bytes may be lost.
    at_unmount: bool
    count: int  # how often the same failure happened
    # The last close could not write these bytes; they may be lost.
    discarded: bool = False


@dataclass(frozen=True, slots=True)
class FileErrors:
    """What :meth:`Mount.file_errors` returns."""

    errors: list[FileError]  # in the order of their first occurrence
    dropped: int  # failures for which the list had no room
