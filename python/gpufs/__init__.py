"""gpufs: files for GPU code, from Python.

A mount is a page cache in GPU memory with a service behind it; kernels open, read and map files of the host through
it. Without a GPU the same code runs on the CPU (the "CPU twin").

    >>> import gpufs
    >>> with gpufs.mount(cache="64MiB") as mount:
    ...     mount.device in ("cpu", "cuda")
    True

Importing this package touches no GPU. Errors of files and devices are ``OSError`` and its subclasses, with ``errno``
and ``filename``; options that cannot be are ``ValueError``.

:mod:`gpufs.grep` counts a dictionary's words in files; :mod:`gpufs.cat` and :mod:`gpufs.stat` show what kernels see of
files; :mod:`gpufs.doctor` says what this machine supports;
:mod:`gpufs.metrics` serves the statistics of mounts to Prometheus; the command line is ``gpufs`` (or ``python -m
gpufs``).

Kernels of your own, in CuPy, ``cuda.core``, PyTorch and Numba, get :meth:`Mount.device_ref`; :func:`include_dirs` and
:func:`compile_options` are for their compilers, :mod:`gpufs.numba` has the calls for Numba.
"""

from gpufs import grep
from gpufs._array import FileArray
from gpufs._compiling import compile_options, include_dirs
from gpufs._core import __version__
from gpufs._device import DeviceArray
from gpufs._file import File, FileStatus
from gpufs._mount import AnyPath, Device, DeviceRef, FileError, FileErrors, FileStatistics, Mount, Options, Statistics
from gpufs.sizes import format_size, parse_size

mount = Mount
"""Mounts: ``gpufs.mount(cache="8GiB")`` is :class:`gpufs.Mount` called."""

__all__ = [
    "AnyPath",
    "Device",
    "DeviceArray",
    "DeviceRef",
    "File",
    "FileArray",
    "FileError",
    "FileErrors",
    "FileStatistics",
    "FileStatus",
    "Mount",
    "Options",
    "Statistics",
    "__version__",
    "compile_options",
    "format_size",
    "grep",
    "include_dirs",
    "mount",
    "parse_size",
]
