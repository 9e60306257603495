"""Files as kernels see them, and the arrays in them: the output of ``gpufs stat``.

:func:`describe` examines a file; :func:`lines` and :meth:`Description.to_json` show the result.
``gpufs stat --json`` prints one object with these fields:

* ``version``: of gpufs;
* ``device``: as of :class:`gpufs.Mount`;
* ``files``: an object for each file (:meth:`Description.to_json`);
* ``failures``: objects with ``path``, ``errno`` and ``error``.

Bytes of paths that are not UTF-8 become lone surrogates.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpufs._array import ArrayEntry, entry_of
from gpufs._array_headers import layouts_in
from gpufs._file import FileStatus
from gpufs._mount import Mount
from gpufs._options import AnyPath


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a file."""

    path: str
    status: FileStatus
    arrays: list[ArrayEntry]
    error: str | None  # why the arrays of a file of arrays cannot be listed

    def to_json(self) -> dict[str, Any]:
        """Returns ``path``, the fields of :class:`gpufs.FileStatus`, and ``arrays``.

        ``arrays`` has an object with the fields of :class:`ArrayEntry` for each array.
        """
        status = {name: getattr(self.status, name) for name in FileStatus.__slots__}
        arrays = [
            {name: getattr(entry, name) for name in ArrayEntry.__slots__} for entry in self.arrays
        ]
        return {"path": self.path, **status, "arrays": arrays}


def describe(mount: Mount, path: AnyPath) -> Description:
    """Describes a file, by a kernel. Reads the header of ``.npy`` and ``.safetensors`` files.

    Waits for the file.

    Raises:
        OSError: the file cannot be opened or read.
    """
    with mount.open(path) as file:
        status = file.stat()
        try:
            arrays = [entry_of(name, layout) for name, layout in layouts_in(file).items()]
        except ValueError as error:
            return Description(file.name, status, [], str(error))
        return Description(file.name, status, arrays, None)


def lines(description: Description) -> Iterator[str]:
    """Yields lines of text for people."""
    status = description.status
    yield description.path
    yield f"  size      {status.size:,} bytes"
    yield f"  mode      {stat.filemode(status.mode)} ({stat.S_IMODE(status.mode):04o})"
    yield f"  modified  {_moment(status.modified_ns)}"
    yield f"  changed   {_moment(status.changed_ns)}"
    yield (
        f"  inode     {status.inode} of device {os.major(status.device)}:{os.minor(status.device)}"
    )
    for entry in description.arrays:
        name = "" if entry.name is None else f"{entry.name!r}: "
        if entry.shape is None:
            yield f"  array     {name}{entry.dtype!r}, which gpufs cannot read"
        else:
            yield (
                f"  array     {name}{entry.dtype} {entry.shape}, {entry.order} order, "
                f"{entry.nbytes:,} bytes from {entry.offset:,}"
            )


def _moment(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    then = time.localtime(seconds)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', then)}.{rest:09} {time.strftime('%z', then)}"
