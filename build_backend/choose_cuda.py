"""Decides whether a build includes GPU code. Uses only the standard library."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from find_nvcc import find_nvcc

ConfigSettings: TypeAlias = dict[str, list[str] | str] | None

_HAS_GPU = Path(__file__).resolve().parent.parent / "tools" / "has_gpu.sh"
_DEFINITION = re.compile(r"-DGPUFS_CUDA(?::\w+)?=(\w+)")


def has_gpu() -> bool:
    """Returns whether this machine has a GPU."""
    return subprocess.run(["sh", _HAS_GPU], check=False).returncode == 0


def requested(config_settings: ConfigSettings, environment: Mapping[str, str]) -> str:
    """Returns the requested value of ``GPUFS_CUDA``, in capitals; ``AUTO`` if there is none.

    Sources are pip's settings ``cmake.define.GPUFS_CUDA`` and ``cmake.args``, and the environment
    variables ``CMAKE_ARGS`` and ``GPUFS_CUDA``.
    """
    settings = dict(config_settings or {})
    defined = settings.get("cmake.define.GPUFS_CUDA")
    if defined is not None:
        return (defined[-1] if isinstance(defined, list) else defined).upper()
    arguments = settings.get("cmake.args", "")
    text = " ".join(
        [
            *(arguments if isinstance(arguments, list) else [arguments]),
            environment.get("CMAKE_ARGS", ""),
        ]
    )
    found = _DEFINITION.findall(text)
    return (found[-1] if found else environment.get("GPUFS_CUDA", "AUTO")).upper()


def choose(request: str) -> bool:
    """Returns whether to build GPU code. ``AUTO``: if there is a GPU or a CUDA compiler."""
    if request == "AUTO":
        return has_gpu() or find_nvcc() is not None
    return request in ("ON", "1", "TRUE", "YES", "Y")
