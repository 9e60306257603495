"""The end of a mount: closes its files, its servers and its service, and keeps the first error."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from gpufs import _core
from gpufs._file import File
from gpufs._submit import Submitter

if TYPE_CHECKING:
    from gpufs._metrics_server import MetricsServer


def unmount(
    core: _core.Mount,
    files: weakref.WeakSet[File],
    latch: threading.Lock,
    servers: list[MetricsServer],
    submitter: Submitter,
    told: set[str],
) -> None:
    """Unmounts; see :meth:`gpufs.Mount.unmount`. A finalizer calls it, so it has no mount."""
    for server in servers:
        server.close()
    first: Exception | None = None
    try:
        left: list[File] = []
        # After a fork the mount is closed: the thread that would release the latch may not exist.
        if not core.closed:
            with latch:
                left = list(files)
        for file in left:
            try:
                file.close()
            except Exception as error:  # the other files must be closed too
                first = first or error
    finally:
        submitter.close()
        try:
            core.unmount()
        except Exception as error:
            if _is_told(core, told):
                pass
            elif first is None:
                first = error
            else:
                first.add_note(f"gpufs: unmounting failed, too: {error}")
    if first is not None:
        raise first


def _is_told(core: _core.Mount, told: set[str]) -> bool:
    """Returns whether the files' close has already raised every loss that unmounting reports."""
    errors, dropped = core.file_errors()
    lost = [
        given_up and os.fsdecode(path) in told
        for path, _, what, at_unmount, _, given_up in errors
        if at_unmount or given_up or what == "close"
    ]
    return bool(lost) and all(lost) and dropped == 0
