"""The statistics of mounts as text for Prometheus; :mod:`gpufs.metrics` describes the format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from gpufs import _core
from gpufs._mount_status import MountStatus
from gpufs._samples import Kind
from gpufs._samples import head as _head
from gpufs._samples import sample as _sample
from gpufs._statistics import FileStatistics, Statistics

BUILD_INFO: Final = "gpufs_build_info"  # its presence identifies an endpoint of gpufs
LATENCY: Final = "gpufs_fault_latency_seconds"


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric of a mount's statistics."""

    name: str
    kind: Kind
    help: str
    key: str = ""  # the key in Statistics of a metric with one series
    # The keys in Statistics of a metric with a series for each path.
    key_of_path: Mapping[str, str] = field(default_factory=dict)
    divisor: int = 1  # converts the counted unit to the metric's unit


_METRICS: Final = (
    _Metric("gpufs_hits_total", "counter", "Pages found in the cache.", "hits"),
    _Metric(
        "gpufs_minor_faults_total",
        "counter",
        "Pages that another group was loading just then.",
        "minor_faults",
    ),
    _Metric(
        "gpufs_loads_total",
        "counter",
        "Pages brought in, by path.",
        key_of_path={
            "direct": "direct_loads",
            "staged": "staged_loads",
            "bulk": "bulk_loads",
            "open": "open_loads",
        },
    ),
    _Metric(
        "gpufs_loaded_bytes_total",
        "counter",
        "File bytes brought in, by path.",
        key_of_path={
            "direct": "direct_bytes",
            "staged": "staged_bytes",
            "bulk": "bulk_bytes",
            "open": "open_bytes",
        },
    ),
    _Metric("gpufs_load_errors_total", "counter", "Loads that failed.", "load_errors"),
    _Metric("gpufs_evictions_total", "counter", "Pages given up for others.", "evictions"),
    _Metric(
        "gpufs_reclaims_total",
        "counter",
        "Pages given up ahead of need; evictions count them too.",
        "reclaims",
    ),
    _Metric(
        "gpufs_lost_races_total",
        "counter",
        "Loads given up because another group had begun the same.",
        "lost_races",
    ),
    _Metric("gpufs_no_frames_total", "counter", "Calls that ended in ENOBUFS.", "no_frames"),
    _Metric("gpufs_read_bytes_total", "counter", "Bytes given to callers of gread.", "read_bytes"),
    _Metric("gpufs_opens_total", "counter", "Opens that asked the host.", "opens"),
    _Metric(
        "gpufs_reopens_total", "counter", "Opens of files that were open: no round trip.", "reopens"
    ),
    _Metric("gpufs_closes_total", "counter", "Closes.", "closes"),
    _Metric("gpufs_rpcs_total", "counter", "Requests to the host.", "rpcs"),
    _Metric(
        "gpufs_rpc_wait_seconds_total",
        "counter",
        "Time that groups waited for answers of the host, in all.",
        "rpc_wait_ns",
        divisor=10**9,
    ),
    _Metric(
        "gpufs_rpc_failures_total",
        "counter",
        "Requests given up: service dead, or deadline passed.",
        "rpc_failures",
    ),
    _Metric("gpufs_sent_bytes_total", "counter", "Bytes sent to sinks.", "sent_bytes"),
    _Metric(
        "gpufs_written_bytes_total",
        "counter",
        "Bytes taken from callers of gwrite.",
        "written_bytes",
    ),
    _Metric(
        "gpufs_write_backs_total", "counter", "Dirty pages written to their files.", "write_backs"
    ),
    _Metric(
        "gpufs_write_back_bytes_total",
        "counter",
        "Dirty bytes written to their files.",
        "write_back_bytes",
    ),
    _Metric(
        "gpufs_write_back_errors_total",
        "counter",
        "Requests to write that failed.",
        "write_back_errors",
    ),
    _Metric(
        "gpufs_extents",
        "gauge",
        "Ranges of files that are registered for direct loads.",
        "extents_registered",
    ),
    _Metric(
        "gpufs_extent_bytes", "gauge", "Bytes that are registered for direct loads.", "extent_bytes"
    ),
    _Metric(
        "gpufs_extents_refused_total",
        "counter",
        "Ranges that were not registered.",
        "extents_refused",
    ),
    _Metric(
        "gpufs_host_open_files",
        "gauge",
        "Files that the service has open on the host.",
        "host_open_files",
    ),
    _Metric(
        "gpufs_requests_served_total",
        "counter",
        "Requests that the service answered.",
        "requests_served",
    ),
)


@dataclass(frozen=True, slots=True)
class _FileMetric:
    name: str
    kind: Kind
    help: str
    value: Callable[[FileStatistics], int]


_FILE_METRICS: Final = (
    _FileMetric(
        "gpufs_file_hits_total",
        "counter",
        "Pages of the file found in the cache.",
        lambda file: file.hits,
    ),
    _FileMetric(
        "gpufs_file_loads_total",
        "counter",
        "Pages of the file brought in.",
        lambda file: file.page_loads,
    ),
    _FileMetric(
        "gpufs_file_direct_loads_total",
        "counter",
        "Pages of the file brought in out of registered pages.",
        lambda file: file.direct_loads,
    ),
    _FileMetric(
        "gpufs_file_loaded_bytes_total",
        "counter",
        "Bytes of the file brought in.",
        lambda file: file.loaded_bytes,
    ),
    _FileMetric(
        "gpufs_file_holders",
        "gauge",
        "Opens of the file not closed yet.",
        lambda file: file.holders,
    ),
    _FileMetric(
        "gpufs_file_extents",
        "gauge",
        "Ranges of the file registered for direct loads.",
        lambda file: file.extents,
    ),
)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The statistics of a mount at one moment."""

    labels: dict[str, str]
    statistics: Statistics
    cache_bytes: int
    page_bytes: int
    files: list[FileStatistics]


def exposition(mounts: Iterable[MountStatus], *, files: bool = False) -> str:
    """Returns the statistics of open mounts in the text exposition format.

    Does not wait for kernels.

    Args:
        mounts: the mounts; the label ``mount`` is the position in this order.
        files: whether to add the metrics of each open file.
    """
    return numbered_exposition(list(enumerate(mounts)), files)


def numbered_exposition(mounts: Sequence[tuple[int, MountStatus]], files: bool) -> str:
    """Returns the same as :func:`exposition`, with a number for the label of each mount."""
    readings = [
        made for number, mount in mounts if (made := _read(number, mount, files)) is not None
    ]
    return "".join(f"{line}\n" for line in _lines(readings, files))


def _read(number: int, mount: MountStatus, files: bool) -> _Reading | None:
    """Reads a mount's statistics.

    Returns None if the mount is closed or another thread closes it.
    """
    try:
        if mount.closed:
            return None
        return _Reading(
            {"mount": str(number), "device": mount.device, "ordinal": str(mount.ordinal)},
            mount.stats(),
            mount.cache_bytes,
            mount.page_bytes,
            mount.file_stats() if files else [],
        )
    except ValueError:
        if not mount.closed:
            raise
        return None


def _lines(readings: Sequence[_Reading], files: bool) -> Iterator[str]:
    yield from _head(BUILD_INFO, "gauge", "Always 1; which gpufs this is.")
    yield _sample(BUILD_INFO, {"version": _core.__version__}, 1)
    yield from _head("gpufs_mounts", "gauge", "Mounts of this endpoint that are open.")
    yield _sample("gpufs_mounts", {}, len(readings))
    if not readings:
        return
    yield from _head("gpufs_cache_bytes", "gauge", "Bytes of the page cache.")
    for reading in readings:
        yield _sample("gpufs_cache_bytes", reading.labels, reading.cache_bytes)
    yield from _head("gpufs_page_bytes", "gauge", "Bytes of a page.")
    for reading in readings:
        yield _sample("gpufs_page_bytes", reading.labels, reading.page_bytes)
    for metric in _METRICS:
        yield from _head(metric.name, metric.kind, metric.help)
        for reading in readings:
            counts = cast("dict[str, int]", reading.statistics)
            if metric.key:
                count = counts[metric.key]
                value = count if metric.divisor == 1 else count / metric.divisor
                yield _sample(metric.name, reading.labels, value)
            for path, key in metric.key_of_path.items():
                yield _sample(metric.name, reading.labels | {"path": path}, counts[key])
    yield from _head(
        LATENCY, "histogram", "Time that loads of single pages took, by whatever path."
    )
    for reading in readings:
        yield from _histogram(LATENCY, reading.labels, reading.statistics["fault_latency_ns"])
    if files:
        yield from _file_lines(readings)


def _histogram(name: str, labels: dict[str, str], counts: Sequence[int]) -> Iterator[str]:
    """Yields the lines of counts by powers of two. The last count has no upper bound."""
    total = 0
    for bit, count in enumerate(counts[:-1]):
        total += count
        yield _sample(f"{name}_bucket", labels | {"le": repr((2 ** (bit + 1) - 1) / 1e9)}, total)
    total += sum(counts[-1:])
    yield _sample(f"{name}_bucket", labels | {"le": "+Inf"}, total)
    yield _sample(f"{name}_count", labels, total)


def _file_lines(readings: Sequence[_Reading]) -> Iterator[str]:
    for metric in _FILE_METRICS:
        yield from _head(metric.name, metric.kind, metric.help)
        for reading in readings:
            sums: dict[str, int] = {}
            for file in reading.files:
                sums[file.path] = sums.get(file.path, 0) + metric.value(file)
            for path, value in sums.items():
                yield _sample(metric.name, reading.labels | _path_labels(path), value)


def _path_labels(path: str) -> dict[str, str]:
    content = os.fsencode(path)
    try:
        return {"file": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"file": content.decode("utf-8", "replace"), "file_bytes": content.hex()}
