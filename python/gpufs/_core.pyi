"""The extension module (python/src): the host API with bytes for paths and plain numbers for options."""

from typing import TypedDict, type_check_only

__version__: str
built_cuda_version: int  # as 13000 for 13.0; 0: without CUDA

@type_check_only
class GpuFacts(TypedDict):
    ordinal: int
    name: str
    pci_address: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    host_register: bool
    host_register_read_only: bool
    virtual_memory: bool
    unified_addressing: bool
    mapped_host_memory: bool
    pageable_memory_access: bool
    host_native_atomics: bool
    prohibited: bool

@type_check_only
class CudaFacts(TypedDict):
    built_version: int
    driver_version: int
    obstacle: str
    gpus: list[GpuFacts]

@type_check_only
class HostCalls(TypedDict):  # each an errno, 0 where the call is usable
    process_vm_readv: int
    cachestat: int
    io_uring: int

def examine_cuda() -> CudaFacts: ...
def examine_host() -> HostCalls: ...

class Mount:
    def __init__(
        self,
        *,
        device: str,
        ordinal: int,
        cache_bytes: int,
        page_bytes: int,
        workers: int,
        extent_budget_bytes: int,
        extent_bytes: int,
        channel_slots: int,
        staging_bytes: int,
        rings: int,
        open_files: int,
        twin_threads: int,
        reclaim_timeout_ns: int,
        heartbeat_timeout_ns: int,
        request_timeout_ns: int,
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def device(self) -> str: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def device_name(self) -> str: ...
    @property
    def direct_path(self) -> str: ...
    @property
    def multiprocessors(self) -> int: ...
    @property
    def options(self) -> dict[str, int]: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, int | list[int]]: ...
    def file_stats(self) -> list[tuple[bytes, int, int, int, int, int]]: ...
    def register_file(self, path: bytes) -> int: ...
    def drop_extents(self) -> None: ...
    def synchronize(self) -> None: ...

class Dictionary:
    def __init__(self, words: list[bytes]) -> None: ...
    @staticmethod
    def read(path: bytes) -> Dictionary: ...
    def __len__(self) -> int: ...

class SearchResult:
    @property
    def file_count(self) -> int: ...
    @property
    def byte_count(self) -> int: ...
    @property
    def words_found(self) -> int: ...
    @property
    def occurrences(self) -> int: ...
    def __len__(self) -> int: ...
    def failures(self) -> list[tuple[bytes, int]]: ...
    def binary(self) -> list[bytes]: ...
    def matches(self, start: int, stop: int) -> list[tuple[bytes, bytes, int]]: ...
    def lines(self, start: int, stop: int) -> bytes: ...

class Search:
    def __init__(self, mount: Mount, dictionary: Dictionary, roots: list[bytes]) -> None: ...
    def wait(self, timeout_s: float) -> bool: ...
    def progress(self) -> tuple[int, int, int, int]: ...
    def result(self) -> SearchResult: ...
