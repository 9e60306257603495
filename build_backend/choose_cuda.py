"""Decides whether a build includes GPU code, and for which GPUs.

Uses only the standard library.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from find_nvcc import find_nvcc

ConfigSettings: TypeAlias = dict[str, list[str] | str] | None

MINIMUM_CAPABILITY = 80

_HAS_GPU = Path(__file__).resolve().parent.parent / "tools" / "has_gpu.sh"


def has_gpu() -> bool:
    """Returns whether this machine has a GPU."""
    return subprocess.run(["sh", _HAS_GPU], check=False).returncode == 0


def compute_capabilities() -> list[str]:
    """Returns those of this machine's GPUs as CMake writes them ("90"), each once, or nothing."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    found = re.findall(r"^(\d+)\.(\d+)$", listed.stdout, re.MULTILINE)
    return sorted({major + minor for major, minor in found}, key=int)


def _defined(
    name: str, config_settings: ConfigSettings, environment: Mapping[str, str]
) -> str | None:
    """Returns the value that pip's settings give a variable of CMake, or None.

    Sources are the settings ``cmake.define.NAME`` and ``cmake.args``, and the environment variable
    ``CMAKE_ARGS``.
    """
    settings = dict(config_settings or {})
    defined = settings.get(f"cmake.define.{name}")
    if defined is not None:
        return defined[-1] if isinstance(defined, list) else defined
    arguments = settings.get("cmake.args", "")
    text = " ".join(
        [
            *(arguments if isinstance(arguments, list) else [arguments]),
            environment.get("CMAKE_ARGS", ""),
        ]
    )
    found = re.findall(rf"-D{name}(?::\w+)?=(\S+)", text)
    return found[-1] if found else None


def requested(config_settings: ConfigSettings, environment: Mapping[str, str]) -> str:
    """Returns the requested value of ``GPUFS_CUDA``, in capitals; ``AUTO`` if there is none."""
    defined = _defined("GPUFS_CUDA", config_settings, environment)
    return (defined or environment.get("GPUFS_CUDA", "AUTO")).upper()


def architectures(
    config_settings: ConfigSettings, environment: Mapping[str, str], found: list[str]
) -> tuple[str, str]:
    """Returns the GPU architectures to build for, as CMake writes them, and the reason.

    Each architecture takes minutes. The newest also gets PTX, which later GPUs translate.

    Args:
        config_settings: pip's; ``CMAKE_CUDA_ARCHITECTURES`` is used if it is defined.
        environment: ``CUDAARCHS`` is used if it is set.
        found: the compute capabilities of this machine's GPUs.
    """
    if defined := _defined("CMAKE_CUDA_ARCHITECTURES", config_settings, environment):
        return defined, "CMAKE_CUDA_ARCHITECTURES says so"
    if chosen := environment.get("CUDAARCHS"):
        return chosen, "CUDAARCHS says so"
    supported = [one for one in found if int(one) >= MINIMUM_CAPABILITY]
    if supported:
        *others, newest = supported
        return ";".join([*(f"{one}-real" for one in others), newest]), "this machine's GPUs"
    return "90", "no GPU found; for others set CUDAARCHS, or use `make wheel`"


def choose(request: str) -> bool:
    """Returns whether to build GPU code. ``AUTO``: if there is a GPU or a CUDA compiler."""
    if request == "AUTO":
        return has_gpu() or find_nvcc() is not None
    return request in ("ON", "1", "TRUE", "YES", "Y")
