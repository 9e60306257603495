"""Files that kernels open once more by themselves, under the names that they were given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gpufs._file import File


@contextlib.contextmanager
def told_as_given(*files: File) -> Iterator[None]:
    """Errors that the block raises have the files' names as they were given."""
    try:
        yield
    except OSError as error:
        for file in files:
            if error.filename is not None and os.fsencode(error.filename) == file.opened_path:
                error.filename = file.name
        raise
