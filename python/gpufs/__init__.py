"""gpufs: files for GPU code, from Python.

A mount is a page cache in GPU memory with a service behind it. Kernels open, read and map files of
the host through it. Without a GPU the same code runs on the CPU (the "CPU device").

    >>> import gpufs
    >>> with gpufs.mount(cache="64MiB") as mount:
    ...     mount.device in ("cpu", "cuda")
    True

Importing this package does not use a GPU. Its modules, such as ``gpufs.linear``, are imported when
they are first used. Errors of files and devices are ``OSError`` and its subclasses, with ``errno``
and ``filename``; invalid options are ``ValueError``.

* :mod:`gpufs.grep` counts a dictionary's words in files.
* :mod:`gpufs.cat` and :mod:`gpufs.stat` show what kernels see of files.
* :mod:`gpufs.doctor` reports what this machine supports.
* :mod:`gpufs.metrics` serves the statistics of mounts to Prometheus.
* The command line is ``gpufs`` (or ``python -m gpufs``).

User kernels in CuPy, ``cuda.core``, PyTorch and Numba take :meth:`Mount.device_ref`.
:func:`include_dirs` and :func:`compile_options` are for their compilers. :mod:`gpufs.numba` has the
device calls for Numba.
"""

from __future__ import annotations

import importlib

# Type checkers know this name. Importing it from typing would be slow: the fewer imports, the
# sooner a command handles Ctrl-C (see __main__.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpufs import (  # noqa: F401 - those that need other libraries are not in __all__
        bench,
        cat,
        collage,
        completion,
        doctor,
        grep,
        linear,
        metrics,
        numba,
        search,
        sizes,
        stat,
        top,
        torch,
    )
    from gpufs._array import ArrayEntry, FileArray
    from gpufs._compiling import compile_options, include_dirs
    from gpufs._core import __version__
    from gpufs._device import DeviceArray
    from gpufs._device_ref import DeviceRef
    from gpufs._file import File, FileStatus
    from gpufs._file_reader import FileReader
    from gpufs._mount import Mount, mount
    from gpufs._options import AnyPath, Device, Options
    from gpufs._statistics import FileError, FileErrors, FileStatistics, Statistics
    from gpufs.sizes import format_size, parse_size

_MODULES = frozenset(
    {
        "bench",
        "cat",
        "collage",
        "completion",
        "doctor",
        "grep",
        "linear",
        "metrics",
        "numba",
        "search",
        "sizes",
        "stat",
        "top",
        "torch",
    }
)
_PLACES = {  # names and the modules that define them
    "AnyPath": "_options",
    "ArrayEntry": "_array",
    "Device": "_options",
    "DeviceArray": "_device",
    "DeviceRef": "_device_ref",
    "File": "_file",
    "FileReader": "_file_reader",
    "FileArray": "_array",
    "FileError": "_statistics",
    "FileErrors": "_statistics",
    "FileStatistics": "_statistics",
    "FileStatus": "_file",
    "Mount": "_mount",
    "Options": "_options",
    "Statistics": "_statistics",
    "__version__": "_core",
    "compile_options": "_compiling",
    "format_size": "sizes",
    "include_dirs": "_compiling",
    "mount": "_mount",
    "parse_size": "sizes",
}


def __getattr__(name: str) -> object:
    """Imports a name of the package at its first use.

    If a library that a module needs is not installed, the ``AttributeError`` says so.
    """
    if name in _PLACES:
        found: object = getattr(importlib.import_module(f"gpufs.{_PLACES[name]}"), name)
        globals()[name] = found
        return found
    text = f"module 'gpufs' has no attribute {name!r}"
    if name not in _MODULES:
        raise AttributeError(text)
    try:
        return importlib.import_module(f"gpufs.{name}")
    except ImportError as error:
        raise AttributeError(f"{text}: {error}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


__all__ = [
    "AnyPath",
    "ArrayEntry",
    "Device",
    "DeviceArray",
    "DeviceRef",
    "File",
    "FileArray",
    "FileError",
    "FileErrors",
    "FileReader",
    "FileStatistics",
    "FileStatus",
    "Mount",
    "Options",
    "Statistics",
    "__version__",
    "cat",
    "collage",
    "compile_options",
    "format_size",
    "grep",
    "include_dirs",
    "linear",
    "metrics",
    "mount",
    "parse_size",
    "search",
    "sizes",
    "stat",
]
