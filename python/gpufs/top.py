"""The rates of mounts, from an endpoint of :mod:`gpufs.metrics`: the output of ``gpufs top``.

:func:`updates` polls the endpoint and compares answers; :func:`line`, :func:`table` and
:meth:`Update.to_json` show the result. ``gpufs top --json`` prints one object for each update,
:meth:`Update.to_json`. Its fields are stable; new ones may be added:

``time``
    Seconds since 1970.
``seconds``
    Seconds since the previous answer, over which all rates are computed.
``mounts``
    For each mount ``mount``, ``device`` and ``ordinal`` (the labels of its metrics), and the rates.
``all``
    The rates of all mounts together.

The rates are:

* ``hits_per_s``, ``minor_faults_per_s``;
* ``hit_ratio``: the share of page accesses that found the page in the cache, or null if there were
  none;
* ``loads_per_s``, ``loaded_bytes_per_s``: objects with a number for each path: ``direct``,
  ``staged``, ``bulk``, ``open``;
* ``read_bytes_per_s``, ``written_bytes_per_s``, ``opens_per_s``, ``reopens_per_s``,
  ``evictions_per_s``, ``write_backs_per_s``, ``write_back_bytes_per_s``;
* ``latency_p50_s``, ``latency_p99_s``: of major faults, as exact as a histogram by powers of two;
  null if there were none;
* ``errors``: since the previous answer; ``errors_total``: since the mounts began.
"""

from __future__ import annotations

import errno
import http.client
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpufs import metrics
from gpufs._visible import printable

if TYPE_CHECKING:
    from rich.console import Group

PATHS: Final = ("direct", "staged", "bulk", "open")
ERRORS: Final = (
    "gpufs_load_errors_total",
    "gpufs_rpc_failures_total",
    "gpufs_write_back_errors_total",
    "gpufs_no_frames_total",
)
ANSWER_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 256 << 20


class NotAnEndpointError(ValueError):
    """The answer does not come from gpufs; the text says where and why."""


def locate(where: str | None) -> str:
    """Returns the URL of an endpoint.

    Args:
        where: a port of this host, a host, or a URL. None: the default port of this host.

    Raises:
        ValueError: ``where`` is none of these.
    """
    if where is None:
        where = str(metrics.DEFAULT_PORT)
    if where.isascii() and where.isdigit():
        if not 0 < int(where) < 2**16:
            raise ValueError(f"no port: {where}")
        where = f"http://127.0.0.1:{where}"
    parts = urlsplit(where if "://" in where else f"http://{where}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(f"neither a port nor a URL of http: {where!r}")
    return parts._replace(
        path=metrics.METRICS_PATH if parts.path in ("", "/") else parts.path, fragment=""
    ).geturl()


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of a mount: values by name. A path follows the name after a space."""

    values: dict[str, float]
    # Cumulative counts of major faults, by the upper bound of their time in seconds.
    buckets: dict[float, float]

    def since(self, before: Counts | None) -> Counts:
        """Returns the increase since ``before``. A counter that is smaller now has restarted."""
        if before is None:
            return self
        if any(count < before.buckets.get(bound, 0) for bound, count in self.buckets.items()):
            buckets = self.buckets
        else:
            buckets = {
                bound: count - before.buckets.get(bound, 0) for bound, count in self.buckets.items()
            }
        values = {}
        for name, value in self.values.items():
            old = before.values.get(name, 0)
            values[name] = value - old if value >= old else value
        return Counts(values, buckets)


@dataclass(frozen=True, slots=True)
class Label:
    """The labels of a mount."""

    mount: str
    device: str
    ordinal: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Average rates per second. The module's documentation describes the fields."""

    hits_per_s: float
    minor_faults_per_s: float
    hit_ratio: float | None
    loads_per_s: dict[str, float]
    loaded_bytes_per_s: dict[str, float]
    read_bytes_per_s: float
    written_bytes_per_s: float
    opens_per_s: float
    reopens_per_s: float
    evictions_per_s: float
    write_backs_per_s: float
    write_back_bytes_per_s: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    errors: int
    errors_total: int


@dataclass(frozen=True, slots=True)
class Update:
    """The rates of all mounts between two answers."""

    time_s: float  # since 1970
    seconds: float  # since the previous answer
    mounts: dict[Label, Rates]
    all: Rates

    def to_json(self) -> dict[str, Any]:
        """Returns the object that the module's documentation describes."""
        return {
            "time": self.time_s,
            "seconds": self.seconds,
            "mounts": [asdict(label) | asdict(rates) for label, rates in self.mounts.items()],
            "all": asdict(self.all),
        }


def updates(url: str, interval_s: float) -> Iterator[Update]:
    """Yields the rates since the previous answer, every ``interval_s`` seconds, without end.

    Raises:
        OSError: nothing listens there, or there is no answer; ``filename`` is the URL.
        NotAnEndpointError: the answer does not come from gpufs.
    """
    before, then = read(fetch(url), url), time.monotonic()
    due = then
    while True:
        # After a pause of the machine or of this process, missed updates are skipped.
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        counts, now = read(fetch(url), url), time.monotonic()
        yield compare(before, counts, now - then)
        before, then = counts, now


def fetch(url: str) -> str:
    """Returns the text at a URL. Waits for it. Does not use a proxy.

    Raises:
        OSError: nothing listens there, or there is no answer; ``filename`` is the URL.
        NotAnEndpointError: the answer is an error, or not text.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_TIMEOUT_S) as answer:
            content: bytes = answer.read(ANSWER_BYTES_MAX + 1)
            # Bytes announced but not received; a read of a given size does not report them.
            missing = answer.length
    except urllib.error.HTTPError as error:
        error.close()
        raise NotAnEndpointError(
            f"{url}: not metrics of gpufs: {error.code} {error.reason}"
        ) from error
    except urllib.error.URLError as error:
        cause = error.reason
        if isinstance(cause, TimeoutError):
            raise _timeout(url) from error
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror or str(cause), url) from error
        raise NotAnEndpointError(f"{url}: {cause}") from error
    except TimeoutError as error:
        raise _timeout(url) from error
    except (ConnectionResetError, http.client.IncompleteRead) as error:
        raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), url) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), url) from error
    except http.client.HTTPException as error:
        raise NotAnEndpointError(f"{url}: not metrics of gpufs: no HTTP") from error
    if len(content) > ANSWER_BYTES_MAX:
        raise NotAnEndpointError(
            f"{url}: not metrics of gpufs: more than {ANSWER_BYTES_MAX:,} bytes"
        )
    if missing:
        raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), url)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotAnEndpointError(f"{url}: not metrics of gpufs: no text") from error


def _timeout(url: str) -> OSError:
    return OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), url)


def read(text: str, url: str) -> dict[Label, Counts]:
    """Returns the counters of each mount in an answer.

    Raises:
        NotAnEndpointError: the answer does not come from gpufs.
    """
    try:
        samples = metrics.parse(text)
    except ValueError as error:
        raise NotAnEndpointError(f"{url}: not metrics of gpufs: {error}") from error
    if all(sample.name != metrics.BUILD_INFO for sample in samples):
        raise NotAnEndpointError(f"{url}: not metrics of gpufs: no {metrics.BUILD_INFO}")
    mounts: dict[Label, Counts] = {}
    for name, labels, value in samples:
        label = Label(*(printable(labels.get(key, "")) for key in ("mount", "device", "ordinal")))
        if not label.mount:
            continue
        counts = mounts.setdefault(label, Counts({}, {}))
        if name == f"{metrics.LATENCY}_bucket":
            counts.buckets[_bound(labels, url)] = value
        else:
            counts.values[f"{name} {labels['path']}" if "path" in labels else name] = value
    return mounts


def _bound(labels: dict[str, str], url: str) -> float:
    try:
        return float(labels["le"])
    except (KeyError, ValueError) as error:
        raise NotAnEndpointError(
            f"{url}: not metrics of gpufs: a bucket without a bound"
        ) from error


def compare(before: dict[Label, Counts], counts: dict[Label, Counts], seconds: float) -> Update:
    """Returns the rates between two answers. A new mount has counted from 0."""
    gained = {label: now.since(before.get(label)) for label, now in counts.items()}
    return Update(
        time.time(),
        seconds,
        {label: _rates(gained[label], now, seconds) for label, now in counts.items()},
        _rates(_sum(gained.values()), _sum(counts.values()), seconds),
    )


def _sum(parts: Iterable[Counts]) -> Counts:
    values: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for part in parts:
        for name, value in part.values.items():
            values[name] = values.get(name, 0) + value
        for bound, count in part.buckets.items():
            buckets[bound] = buckets.get(bound, 0) + count
    return Counts(values, buckets)


def _rates(gained: Counts, counts: Counts, seconds: float) -> Rates:
    def per_s(name: str) -> float:
        return gained.values.get(name, 0) / seconds

    hits = gained.values.get("gpufs_hits_total", 0)
    # Pages that come in runs or with an open are loaded before an access misses them.
    misses = sum(
        gained.values.get(name, 0)
        for name in (
            "gpufs_minor_faults_total",
            "gpufs_loads_total direct",
            "gpufs_loads_total staged",
        )
    )
    return Rates(
        hits_per_s=per_s("gpufs_hits_total"),
        minor_faults_per_s=per_s("gpufs_minor_faults_total"),
        hit_ratio=hits / (hits + misses) if hits + misses else None,
        loads_per_s={path: per_s(f"gpufs_loads_total {path}") for path in PATHS},
        loaded_bytes_per_s={path: per_s(f"gpufs_loaded_bytes_total {path}") for path in PATHS},
        read_bytes_per_s=per_s("gpufs_read_bytes_total"),
        written_bytes_per_s=per_s("gpufs_written_bytes_total"),
        opens_per_s=per_s("gpufs_opens_total"),
        reopens_per_s=per_s("gpufs_reopens_total"),
        evictions_per_s=per_s("gpufs_evictions_total"),
        write_backs_per_s=per_s("gpufs_write_backs_total"),
        write_back_bytes_per_s=per_s("gpufs_write_back_bytes_total"),
        latency_p50_s=quantile(gained.buckets, 0.5),
        latency_p99_s=quantile(gained.buckets, 0.99),
        errors=int(sum(gained.values.get(name, 0) for name in ERRORS)),
        errors_total=int(sum(counts.values.get(name, 0) for name in ERRORS)),
    )


def quantile(buckets: dict[float, float], share: float) -> float | None:
    """Returns the time in seconds that this share of faults did not exceed; None without faults.

    Within a bucket, faults are assumed to be evenly distributed, as in ``histogram_quantile`` of
    Prometheus. For the last bucket, which has no upper bound, the lower bound is returned.
    """
    below, below_bound = 0.0, 0.0
    ordered = sorted(buckets.items())
    if not ordered or ordered[-1][1] <= 0:
        return None
    wanted = share * ordered[-1][1]
    for bound, count in ordered:
        if count >= wanted and count > below:
            if math.isinf(bound):
                return below_bound
            return below_bound + (bound - below_bound) * (wanted - below) / (count - below)
        below, below_bound = count, bound
    return below_bound


# --- Text for people ---


def rows(rates: Rates) -> Iterator[tuple[str, str]]:
    """Yields a name and a text for each rate to show."""
    yield "hits/s", _count(rates.hits_per_s)
    yield "hit ratio", "-" if rates.hit_ratio is None else f"{rates.hit_ratio:.1%}"
    for path in PATHS:
        yield f"{path} loads/s", _count(rates.loads_per_s[path])
    yield "minor faults/s", _count(rates.minor_faults_per_s)
    for path in PATHS:
        yield f"{path} MB/s", _megabytes(rates.loaded_bytes_per_s[path])
    yield "read MB/s", _megabytes(rates.read_bytes_per_s)
    yield "written MB/s", _megabytes(rates.written_bytes_per_s)
    yield "opens/s", _count(rates.opens_per_s)
    yield "reopens/s", _count(rates.reopens_per_s)
    yield "evictions/s", _count(rates.evictions_per_s)
    yield "write-backs/s", _count(rates.write_backs_per_s)
    yield "fault p50", _duration(rates.latency_p50_s)
    yield "fault p99", _duration(rates.latency_p99_s)
    yield "errors", f"{rates.errors_total:,}"


def line(update: Update) -> str:
    """Returns an update as one line, for all mounts together."""
    clock = time.strftime("%H:%M:%S", time.localtime(update.time_s))
    if not update.mounts:
        return f"{clock}  no mount is open"
    return "  ".join([clock, *(f"{name} {text}" for name, text in rows(update.all))])


def table(update: Update, url: str) -> Group:
    """Returns an update as a title and a table.

    The table has a column for each mount, and one for all if there are several.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(update.time_s))
    shown = Table(box=None, pad_edge=False)
    shown.add_column("" if update.mounts else "no mount is open")
    columns = [
        (f"mount {label.mount}: {label.device} {label.ordinal}", dict(rows(rates)))
        for label, rates in update.mounts.items()
    ]
    if len(columns) > 1:
        columns.append(("all", dict(rows(update.all))))
    for title, _ in columns:
        shown.add_column(Text(title), justify="right")
    if columns:
        for name, _ in rows(update.all):
            failed = name == "errors" and update.all.errors_total
            shown.add_row(
                Text(name),
                *(Text(texts[name]) for _, texts in columns),
                style="bold red" if failed else None,
            )
    return Group(Text(f"{url}  {clock}", style="bold"), shown)


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == 0 or number >= 10 else f"{number:,.1f}"


def _megabytes(number: float) -> str:
    return f"{number / 1e6:,.1f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
