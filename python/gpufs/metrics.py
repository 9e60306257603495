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

from collections.abc import Iterable
from typing import Final

from gpufs._exposition import BUILD_INFO, LATENCY, exposition
from gpufs._metrics_server import HINT, MetricsServer
from gpufs._mount import Mount
from gpufs._options import DEFAULT_METRICS_PORT
from gpufs._samples import Kind, Sample, parse
from gpufs._text_server import ACCEPT_PAUSE_S, CLIENT_TIMEOUT_S, CONTENT_TYPE, METRICS_PATH

DEFAULT_PORT: Final = DEFAULT_METRICS_PORT


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


__all__ = [
    "ACCEPT_PAUSE_S",
    "BUILD_INFO",
    "CLIENT_TIMEOUT_S",
    "CONTENT_TYPE",
    "DEFAULT_PORT",
    "HINT",
    "LATENCY",
    "METRICS_PATH",
    "Kind",
    "MetricsServer",
    "Sample",
    "exposition",
    "parse",
    "serve",
]
