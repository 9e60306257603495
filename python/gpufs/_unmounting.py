"""The end of a mount: closes its files, its servers and its service, and keeps the first error."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from gpufs import _core
from gpufs._file import File
from gpufs._losses import Losses
from gpufs._submit import Submitter

if TYPE_CHECKING:
    from gpufs._metrics_server import MetricsServer


def unmount(
    core: _core.Mount,
    files: weakref.WeakSet[File],
    latch: threading.Lock,
    servers: list[MetricsServer],
    submitter: Submitter,
    losses: Losses,
) -> None:
    """Unmounts; see :meth:`gpufs.Mount.unmount`. A finalizer calls it, so it has no mount."""
    for server in servers:
        server.close()
    first: Exception | None = None
    try:
        open_files: list[File] = []
        # After a fork the mount is closed: the thread that would release the latch may not exist.
        if not core.closed:
            with latch:
                open_files = list(files)
        for file in open_files:
            try:
                file.close()
            except Exception as error:  # the other files must be closed too
                first = first or error
    finally:
        submitter.close()
        for left in [*submitter.lost(), *_errors_of(core, losses)]:
            if first is None:
                first = left
            else:
                first.add_note(f"gpufs: unmounting failed, too: {left}")
    if first is not None:
        raise first


def _errors_of(core: _core.Mount, losses: Losses) -> list[Exception]:
    """Ends the core's mount. Returns the errors that no call has raised before."""
    errors: list[Exception] = []
    try:
        core.unmount()
    except Exception as error:
        errors = losses.left_of(error)
    try:
        core.raise_kept()
    except Exception as kept:  # of a file that was closed without a caller
        # If both are about one file, this one says more.
        errors = [kept, *(error for error in errors if _path_of(error) != _path_of(kept))]
    return errors


def _path_of(error: Exception) -> object:
    return getattr(error, "filename", None)
