r"""The statistics of mounts as an endpoint for Prometheus.

    >>> import gpufs
    >>> from gpufs import metrics
    >>> mount = gpufs.mount(device="cpu", cache="4MiB")
    >>> with mount, metrics.serve(mount, port=0) as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True

:func:`serve` makes one endpoint for any number of mounts, :meth:`gpufs.Mount.serve_metrics` one for
a single mount. ``gpufs top`` shows the endpoint's statistics in a terminal. It requests them in the
same way as a scrape of Prometheus.

The answer is in the text exposition format 0.0.4. Every sample has the labels ``mount`` (the number
of the mount in the endpoint's arguments, from 0), ``device`` (``cuda`` or ``cpu``) and ``ordinal``
(the GPU's number). Names follow Prometheus' conventions: a value that only grows is a counter and
ends in ``_total``, times are seconds, sizes bytes. Loads and their bytes are one metric each, with
the path of the pages in the label ``path``: ``direct``, ``staged``, ``bulk`` or ``open``.
``gpufs_build_info`` and ``gpufs_mounts`` (the number of open mounts) are always present.

The latency of major faults, and of pages that come with an open, is a histogram without
``gpufs_fault_latency_seconds_sum``. A mount counts faults by powers of two and does not add up
times. The format does not require a sum, and an estimated one would give wrong averages.
``histogram_quantile`` does not need it. The bounds are the largest times of their buckets (``2**(b
+ 1) - 1`` nanoseconds), because ``le`` includes its bound, and the next power of two belongs to the
next bucket.

With ``files=True`` there are also metrics of each file that kernels have open, with its path in the
label ``file``. They begin at 0 when the file is opened, and disappear when it is closed. Opens of
one path in several modes are added up.

Bytes of a path that are not UTF-8 become U+FFFD. The label ``file_bytes`` then has all bytes of the
path in hexadecimal digits, so that no two files have the same labels. This option is off by
default, because a mount may have 131,072 open files, with six lines each.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, cast

from gpufs import _core
from gpufs._mount import DEFAULT_METRICS_PORT, FileStatistics, Mount, Statistics

DEFAULT_PORT: Final = DEFAULT_METRICS_PORT
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATH: Final = "/metrics"
HINT: Final = f"gpufs: metrics for Prometheus are at {METRICS_PATH}\n"
BUILD_INFO: Final = "gpufs_build_info"  # its presence identifies an endpoint of gpufs
LATENCY: Final = "gpufs_fault_latency_seconds"
CLIENT_TIMEOUT_S: Final = 10.0  # for a client that sends no request, or does not read the answer
# The pause before the next accept after a failed one, for example without free descriptors.
ACCEPT_PAUSE_S: Final = 0.1

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
# A connection; socketserver uses the same name for a datagram with its socket.
_Socket: TypeAlias = Any
_ClientAddress: TypeAlias = Any  # its form depends on the address family


# --- The metrics ---


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
        "Pages of the file brought in by the direct or the bulk path.",
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


def exposition(mounts: Iterable[Mount], *, files: bool = False) -> str:
    """Returns the statistics of open mounts in the text exposition format.

    Does not wait for kernels.

    Args:
        mounts: the mounts; the label ``mount`` is the position in this order.
        files: whether to add the metrics of each open file.
    """
    return _exposition(list(enumerate(mounts)), files)


def _exposition(mounts: Sequence[tuple[int, Mount]], files: bool) -> str:
    readings = [
        made for number, mount in mounts if (made := _read(number, mount, files)) is not None
    ]
    return "".join(f"{line}\n" for line in _lines(readings, files))


def _read(number: int, mount: Mount, files: bool) -> _Reading | None:
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


def _head(name: str, kind: Kind, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {value!r}" if inner else f"{name} {value!r}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- The endpoint ---


def serve(
    mounts: Mount | Iterable[Mount],
    *,
    address: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    files: bool = False,
) -> MetricsServer:
    """Serves the statistics of mounts over HTTP, at ``/metrics``, from a thread of its own.

    The server runs until it is closed or the interpreter exits, even if the program does not keep
    the result. Does not wait.

    Args:
        mounts: one or several mounts. A closed mount is left out of the answers. The server does
            not keep a mount alive.
        address: a name or a number of this host, to listen on. By default only programs of this
            host can connect. There is no password, and the statistics, above all file names, may be
            confidential. ``"0.0.0.0"`` or ``"::"`` let everyone who can reach this host read them.
        port: the port to listen on; ``gpufs top`` uses the default, 9464. 0: any free port; see
            :attr:`MetricsServer.port`.
        files: whether to add the metrics of each open file; see :mod:`gpufs.metrics`.

    Raises:
        OSError: the server cannot listen there; ``filename`` is the address with the port.
        ValueError: an invalid port.
    """
    return MetricsServer(
        [mounts] if isinstance(mounts, Mount) else mounts, address=address, port=port, files=files
    )


class MetricsServer:
    """An endpoint made by :func:`serve`: a context manager that closes it at the block's end.

    ``GET`` and ``HEAD`` of ``/metrics`` return the statistics; of ``/`` they return a line with a
    hint. Other paths are 404, other methods 405. Any number of clients may connect at the same
    time. All methods may be called from several threads. A forked child process does not serve.
    """

    __slots__ = ("__weakref__", "_address", "_listener")

    def __init__(self, mounts: Iterable[Mount], *, address: str, port: int, files: bool) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"a port must be between 0 and 65535: {port}")
        references = [(number, weakref.ref(mount)) for number, mount in enumerate(mounts)]

        def read() -> str:
            there = [
                (number, mount)
                for number, reference in references
                if (mount := reference()) is not None
            ]
            return _exposition(there, files)

        self._address = address
        self._listener = _Listener(address, port, read)
        self._listener.start()
        _servers.add(self)

    def __enter__(self) -> Self:
        """Returns the server."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the server."""
        self.close()

    def __repr__(self) -> str:
        """Returns a text with the URL."""
        return f"<gpufs.metrics.MetricsServer {'closed' if self.closed else f'at {self.url}'}>"

    @property
    def address(self) -> str:
        """The address to listen on, as it was given."""
        return self._address

    @property
    def port(self) -> int:
        """The port, also if the argument was 0."""
        return self._listener.server_port

    @property
    def url(self) -> str:
        """The URL of the statistics."""
        return f"http://{_host_and_port(self._address, self.port)}{METRICS_PATH}"

    @property
    def closed(self) -> bool:
        """Whether the server was closed, by a call or by a fork."""
        return self not in _servers

    def close(self) -> None:
        """Ends the service. Waits for its threads. A second call does nothing.

        Closes all connections and the socket.
        """
        _servers.discard(self)
        self._listener.close()

    def _forget(self) -> None:
        self._listener.socket.close()


# Keeps all servers alive, and finds them at exit.
_servers: Final[set[MetricsServer]] = set()


@atexit.register
def _close_all() -> None:
    """Closes all servers. Threads that still run after the exit are killed within a call."""
    for server in list(_servers):
        server.close()


def _forget_all() -> None:
    """Closes the sockets after a fork: no thread serves them in the child process.

    An open socket would keep the port in use.
    """
    for server in list(_servers):
        server._forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_all)


def _host_and_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class _Listener(ThreadingHTTPServer):
    """Accepts connections on one thread and answers each on another; ``close`` ends them all."""

    daemon_threads = True
    allow_reuse_port = False  # the default of newer Pythons would let two servers share a port

    def __init__(self, address: str, port: int, read: Callable[[], str]) -> None:
        self.read: Final = read
        self._ending: Final = threading.Event()
        # Guards `_connections`, and prevents that a socket is closed while another thread shuts it
        # down. Reentrant: a garbage collection in the critical section may close a mount and its
        # server.
        self._latch: Final = threading.RLock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._owner: Final = os.getpid()
        self._thread: Final = threading.Thread(
            target=self._accept, name="gpufs-metrics", daemon=True
        )
        try:
            found = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self.address_family = found[0][0]
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise OSError(error.errno, error.strerror, _host_and_port(address, port)) from error
        except UnicodeError as error:
            raise ValueError(f"no address of a host: {address!r}") from error

    def server_bind(self) -> None:
        """Binds without looking up the host's full name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError:
            self.server_close()
            raise

    def close(self) -> None:
        """Ends all threads except the calling one.

        The caller may be one of them, because a garbage collection closes mounts.
        """
        if os.getpid() != self._owner:
            return
        self._ending.set()
        with contextlib.suppress(OSError):  # already closed
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        me = threading.current_thread()
        if self._thread is not me:
            self._thread.join()
        with self._latch:
            for connection in self._connections.values():
                with contextlib.suppress(OSError):  # the client has disconnected
                    connection.shutdown(socket.SHUT_RDWR)
            threads = list(self._connections)
        for thread in threads:
            if thread is not me:
                thread.join()
        self.server_close()

    def _accept(self) -> None:
        while not self._ending.is_set():
            self.handle_request()

    def get_request(self) -> tuple[socket.socket, _ClientAddress]:
        try:
            return super().get_request()
        except OSError:
            # The caller retries at once, and the connection that could not be accepted is still
            # waiting.
            self._ending.wait(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: _Socket, client_address: _ClientAddress) -> None:
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="gpufs-metrics",
            daemon=True,
        )
        with self._latch:
            for ended in [other for other in self._connections if not other.is_alive()]:
                del self._connections[ended]
            try:
                thread.start()
            # No thread can be started, or the interpreter exits: this client gets no answer.
            except RuntimeError:
                self.shutdown_request(request)
            else:
                self._connections[thread] = request

    def shutdown_request(self, request: _Socket) -> None:
        with self._latch:
            super().shutdown_request(request)

    def handle_error(self, request: _Socket, client_address: _ClientAddress) -> None:
        """Ignores errors of clients that disconnect or stop reading and writing."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S
    server_version = f"gpufs/{_core.__version__}"

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Answers every method, including unknown ones."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if self.command not in ("GET", "HEAD"):
            self._send(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", {"Allow": "GET, HEAD"})
        elif path == METRICS_PATH:
            try:
                text = cast(_Listener, self.server).read()
            except Exception as error:
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}\n")
            else:
                self._send(HTTPStatus.OK, text, {"Content-Type": CONTENT_TYPE})
        elif path == "/":
            self._send(HTTPStatus.OK, HINT)
        else:
            self._send(HTTPStatus.NOT_FOUND, HINT)

    def _send(
        self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        body = text.encode("utf-8", "backslashreplace")
        fields = {
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(body)),
        } | dict(headers or {})
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: standard error belongs to the program."""


# --- The parser ---


class Sample(NamedTuple):
    """A line of the text format."""

    name: str
    labels: dict[str, str]
    value: float


_SAMPLE_LINE: Final = re.compile(
    r"""[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*
    (?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}[ \t]*|[ \t])
    [ \t]*([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*""",
    re.VERBOSE | re.DOTALL,
)
_LABEL: Final = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\[\\"n])*)"[ \t]*(,|\Z)', re.DOTALL
)
_BLANKS: Final = re.compile(r"[ \t]*\Z")
_ESCAPED: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> list[Sample]:
    """Returns the samples of a text in the exposition format 0.0.4.

    Ignores timestamps and comments.

    Raises:
        ValueError: a line is not in the format.
    """
    samples = []
    # no other character ends a line, and paths may contain all others
    for line in text.split("\n"):
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        match = _SAMPLE_LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a sample: {line[:80]!r}")
        name, labels, value = match.groups()
        samples.append(Sample(name, _parse_labels(labels or ""), _parse_value(value)))
    return samples


def _parse_value(text: str) -> float:
    try:
        if "_" in text or not text.isascii():  # notations that only Python has
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"not a number: {text[:80]!r}") from None


def _parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    position = 0
    while not _BLANKS.match(text, position):  # a comma may follow the last label
        match = _LABEL.match(text, position)
        if match is None:
            raise ValueError(f"not a label: {text[position : position + 80]!r}")
        labels[match[1]] = re.sub(r'\\[\\"n]', lambda escape: _ESCAPED[escape[0]], match[2])
        position = match.end()
    return labels
