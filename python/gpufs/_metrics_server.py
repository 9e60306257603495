"""The endpoint of :func:`gpufs.metrics.serve`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Final

from gpufs import _core
from gpufs._exposition import numbered_exposition
from gpufs._mount_status import MountStatus
from gpufs._text_server import TextServer, hint

HINT: Final = hint("gpufs")


class MetricsServer(TextServer):
    """An endpoint made by :func:`gpufs.metrics.serve`.

    It is a context manager, which closes the endpoint at the block's end.

    ``GET`` and ``HEAD`` of ``/metrics`` return the statistics; of ``/`` they return a line with a
    hint. Other paths are 404, other methods 405. Any number of clients may connect at the same
    time. All methods may be called from several threads. A forked child process does not serve.
    """

    __slots__ = ()

    def __init__(
        self, mounts: Iterable[MountStatus], *, address: str, port: int, files: bool
    ) -> None:
        references = [(number, weakref.ref(mount)) for number, mount in enumerate(mounts)]

        def read() -> str:
            there = [
                (number, mount)
                for number, reference in references
                if (mount := reference()) is not None
            ]
            return numbered_exposition(there, files)

        super().__init__(
            read, program="gpufs", version=_core.__version__, address=address, port=port
        )
