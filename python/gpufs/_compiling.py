"""What compilers of users' kernels need to know: where the headers are, and how to read them."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
# In an installed package, and in a source tree.
_PLACES: Final = (_PACKAGE / "include", _PACKAGE.parent.parent / "include")


def include_dirs() -> list[str]:
    """Returns the folders in which compilers find ``gpufs/gpufs.cuh``.

    The headers need no others: neither CUDA's nor those of the C++ library, so run-time compilers
    (NVRTC) take them.

    Raises:
        FileNotFoundError: the headers are neither in the package nor beside it.
    """
    for place in _PLACES:
        if (place / "gpufs" / "gpufs.cuh").is_file():
            return [str(place)]
    raise FileNotFoundError(f"the headers of gpufs are in none of {', '.join(map(str, _PLACES))}")


def compile_options() -> list[str]:
    """Returns the options with which NVRTC and nvcc compile kernels that include the headers.

    They are the language's version, :func:`include_dirs`, and a macro that nothing reads: it names
    this version of the headers. CuPy keeps what it compiled on disk and knows it by source and
    options, so without the macro a kernel would go on with the headers of the gpufs that it was
    compiled with.

    Raises:
        FileNotFoundError: as :func:`include_dirs`.
    """
    folders = include_dirs()
    return [
        "-std=c++20",
        *(f"-I{folder}" for folder in folders),
        f"-DGPUFS_HEADERS={_digest(folders[0])}",
    ]


@functools.cache
def _digest(folder: str) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for header in sorted(Path(folder, "gpufs").rglob("*.*")):
        digest.update(header.read_bytes())
    return f"0x{digest.hexdigest()}"
