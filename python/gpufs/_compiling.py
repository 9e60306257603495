"""Include folders and options for the compilers of user kernels."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
# The folders of an installed package and of a source tree.
_PLACES: Final = (_PACKAGE / "include", _PACKAGE.parent.parent / "include")


def include_dirs() -> list[str]:
    """Returns the include folders that contain ``gpufs/gpufs.cuh``.

    The headers include no others, neither CUDA's nor the C++ library's, so run-time compilers
    (NVRTC) accept them.

    Raises:
        FileNotFoundError: the headers are neither in the package nor beside it.
    """
    for place in _PLACES:
        if (place / "gpufs" / "gpufs.cuh").is_file():
            return [str(place)]
    raise FileNotFoundError(f"the headers of gpufs are in none of {', '.join(map(str, _PLACES))}")


def compile_options() -> list[str]:
    """Returns the options for NVRTC and nvcc to compile kernels that include the headers.

    They are the language's version, :func:`include_dirs`, and an unused macro with a digest of the
    headers. CuPy caches compiled kernels on disk by source and options. Without the macro it would
    use kernels compiled with the headers of another gpufs version.

    Raises:
        FileNotFoundError: as for :func:`include_dirs`.
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
