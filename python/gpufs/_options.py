"""The options of a mount: their types and defaults, and checks of their values."""

from __future__ import annotations

import operator
import os
from typing import Final, Literal, SupportsIndex, TypeAlias, TypedDict

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

DEFAULT_METRICS_PORT: Final = 9464  # the usual port of a metrics exporter

UNLIMITED: Final = 2**64 - 1  # the host API's "half of the host's memory"


class Options(TypedDict):
    """The options of a mount with their defaults filled in; see :attr:`Mount.options`."""

    ordinal: int
    cache_bytes: int
    page_bytes: int
    workers: int
    extent_budget_bytes: int
    extent_bytes: int
    channel_slots: int
    staging_bytes: int
    bulk_bytes: int
    rings: int
    open_files: int
    cpu_threads: int
    reclaim_timeout_ns: int
    request_timeout_ns: int
    unmount_timeout_ns: int
    read_only: bool
    maps_files: bool
    raises_descriptor_limit: bool
    root: bytes | None


def checked_count(name: str, count: SupportsIndex | None) -> int:
    """Returns a number for the extension module, where 0 means the default."""
    if count is None:
        return 0
    number = operator.index(count)
    if not 0 < number < 2**32:
        raise ValueError(f"{name} must be at least 1: {number}")
    return number


def nonzero_size(name: str, size_bytes: int) -> int:
    """Returns a size that must not be 0."""
    if size_bytes == 0:
        raise ValueError(f"{name} must not be 0 bytes")
    return size_bytes


def staging_size(name: str, size_bytes: int) -> int:
    """Returns a size that fits into the 32 bits of the host API."""
    if not 0 < size_bytes < 2**32:
        raise ValueError(f"{name} must be between 8 KiB and 1 MiB: {size_bytes} bytes")
    return size_bytes


def nanoseconds(name: str, seconds: float) -> int:
    """Returns a time limit in the unit of the host API."""
    if not 0 < seconds < 2**33:
        raise ValueError(f"{name} must be greater than 0 and finite: {seconds}")
    return round(seconds * 1e9)
