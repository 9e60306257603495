"""File names in errors of calls whose kernels open files again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gpufs._file import File


@contextlib.contextmanager
def told_as_given(*files: File) -> Iterator[None]:
    """Replaces the opened names of files in errors of the block by the names that users gave."""
    try:
        yield
    except OSError as error:
        for file in files:
            if error.filename is not None and os.fsencode(error.filename) == file.opened_path:
                error.filename = file.name
        raise
