"""What a mount reports about itself: its device, its options, its counters and its errors."""

from __future__ import annotations

import os
from typing import Literal, cast

from gpufs._core import Mount as CoreMount
from gpufs._options import Options
from gpufs._statistics import FileError, FileErrors, FileStatistics, Statistics


class MountStatus:
    """The base of :class:`gpufs.Mount` that only reads the extension module's mount."""

    __slots__ = ("_core",)

    _core: CoreMount

    @property
    def core(self) -> CoreMount:
        """The extension module's mount."""
        return self._core

    @property
    def closed(self) -> bool:
        """Whether the mount was closed, in this process or before the fork in its parent."""
        return self._core.closed

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device that the mount runs on."""
        return cast(Literal["cpu", "cuda"], self._core.device)

    @property
    def device_name(self) -> str:
        """The GPU's name, or the CPU device's name with its number of threads."""
        return self._core.device_name

    @property
    def ordinal(self) -> int:
        """The GPU's number, counted from 0."""
        return self._core.ordinal

    @property
    def multiprocessors(self) -> int:
        """The number of the GPU's multiprocessors, or of the CPU device's threads."""
        return self._core.multiprocessors

    @property
    def direct_path(self) -> str:
        """``"on"``, or the reason why every load is staged."""
        return self._core.direct_path

    @property
    def bulk_path(self) -> str:
        """``"on"``, or the reason why runs of pages are loaded page by page."""
        return self._core.bulk_path

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.options["page_bytes"]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the page cache."""
        return self.options["cache_bytes"]

    @property
    def options(self) -> Options:
        """All options in the host API's units (bytes, nanoseconds), with the defaults filled in."""
        return cast(Options, self._core.options)

    def stats(self) -> Statistics:
        """Returns the counters of the mount and of its service. Does not wait for kernels."""
        return cast(Statistics, self._core.stats())

    def file_stats(self) -> list[FileStatistics]:
        """Returns the counters of each file that kernels have open. Does not wait for kernels."""
        return [
            FileStatistics(os.fsdecode(path), *numbers)
            for path, *numbers in self._core.file_stats()
        ]

    def file_errors(self) -> FileErrors:
        """Returns the errors of files so far; works after :meth:`unmount` too.

        The list includes errors that a kernel has already received.
        """
        errors, dropped = self._core.file_errors()
        return FileErrors(
            [
                FileError(
                    os.fsdecode(path),
                    number,
                    cast(Literal["write-back", "sync", "close"], what),
                    at_unmount,
                    count,
                    discarded,
                )
                for path, number, what, at_unmount, count, discarded in errors
            ],
            dropped,
        )
