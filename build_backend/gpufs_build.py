"""The build backend (PEP 517): scikit-build-core's, plus a CUDA compiler from PyPI if needed.

The environment variable ``GPUFS_CUDA``, or pip's ``--config-settings=cmake.define.GPUFS_CUDA=``,
selects the build:

* ``ON``: for GPUs and the CPU device;
* ``OFF``: for the CPU device only;
* ``AUTO`` (the default): for GPUs if there is a GPU or a CUDA compiler. On other machines GPU code
  would only take minutes to compile.

``CUDAARCHS`` selects the GPUs, as CMake writes them; by default those of this machine. The backend
says what it builds and why, and shows on the terminal how far it is.
"""

from __future__ import annotations

import os

from choose_cuda import (
    ConfigSettings,
    architectures,
    choose,
    compute_capabilities,
    requested,
)
from find_nvcc import REQUIREMENT, find_nvcc
from progress import say, shown
from scikit_build_core import build as _base
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def _choose_cuda(config_settings: ConfigSettings) -> bool:
    """Returns whether to build GPU code. For ``AUTO``, also sets CMake's default."""
    request = requested(config_settings, os.environ)
    wanted = choose(request)
    if request == "AUTO":
        os.environ["GPUFS_CUDA"] = "ON" if wanted else "OFF"  # the default of CMake's option
    return wanted


def _announce(config_settings: ConfigSettings) -> None:
    """Says what is built and why, and sets CMake's defaults accordingly."""
    request = requested(config_settings, os.environ)
    if not _choose_cuda(config_settings):
        why = "no GPU and no CUDA compiler found" if request == "AUTO" else f"GPUFS_CUDA={request}"
        say(f"building for the CPU device ({why})")
        return
    wanted, why = architectures(config_settings, os.environ, compute_capabilities())
    os.environ["CUDAARCHS"] = wanted
    say(f"building for GPUs of compute capability {wanted} ({why}); this takes minutes")


def _cuda_requirements(config_settings: ConfigSettings) -> list[str]:
    return [REQUIREMENT] if _choose_cuda(config_settings) and find_nvcc() is None else []


def build_wheel(
    wheel_directory: str,
    config_settings: ConfigSettings = None,
    metadata_directory: str | None = None,
) -> str:
    _announce(config_settings)
    with shown():
        return _base.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: ConfigSettings = None,
    metadata_directory: str | None = None,
) -> str:
    _announce(config_settings)
    with shown():
        return _base.build_editable(wheel_directory, config_settings, metadata_directory)


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    return [
        *_base.get_requires_for_build_wheel(config_settings),
        *_cuda_requirements(config_settings),
    ]


def get_requires_for_build_editable(config_settings: ConfigSettings = None) -> list[str]:
    return [
        *_base.get_requires_for_build_editable(config_settings),
        *_cuda_requirements(config_settings),
    ]
