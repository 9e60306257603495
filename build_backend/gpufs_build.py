"""The build backend (PEP 517): scikit-build-core's, plus the CUDA compiler from PyPI where the machine has none.

``GPUFS_CUDA`` in the environment, or pip's ``--config-settings=cmake.define.GPUFS_CUDA=``, says what is built: ``ON``
(the default) for GPUs and the CPU twin, ``OFF`` for the twin only, ``AUTO`` for what the machine's own compilers allow.
"""

from __future__ import annotations

import os
from typing import TypeAlias

from find_nvcc import REQUIREMENT, find_nvcc
from scikit_build_core import build as _base
from scikit_build_core.build import build_editable, build_sdist, build_wheel, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

ConfigSettings: TypeAlias = dict[str, list[str] | str] | None


def _wants_cuda(config_settings: ConfigSettings) -> bool:
    setting = (config_settings or {}).get("cmake.define.GPUFS_CUDA", os.environ.get("GPUFS_CUDA", "ON"))
    if isinstance(setting, list):
        setting = setting[-1]
    return setting.upper() in ("ON", "1", "TRUE", "YES", "Y")


def _cuda_requirements(config_settings: ConfigSettings) -> list[str]:
    return [REQUIREMENT] if _wants_cuda(config_settings) and find_nvcc() is None else []


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    return [*_base.get_requires_for_build_wheel(config_settings), *_cuda_requirements(config_settings)]


def get_requires_for_build_editable(config_settings: ConfigSettings = None) -> list[str]:
    return [*_base.get_requires_for_build_editable(config_settings), *_cuda_requirements(config_settings)]
