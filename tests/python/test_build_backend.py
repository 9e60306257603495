"""What the build backend builds for; no build is made."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

BACKEND = Path(__file__).resolve().parents[2] / "build_backend"


@pytest.fixture
def choose_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(os.fspath(BACKEND))
    return importlib.import_module("choose_cuda")


@pytest.mark.parametrize(
    ("settings", "environment", "request_"),
    [
        (None, {}, "AUTO"),
        ({}, {"GPUFS_CUDA": "off"}, "OFF"),
        ({"cmake.define.GPUFS_CUDA": "ON"}, {"GPUFS_CUDA": "OFF"}, "ON"),
        ({"cmake.define.GPUFS_CUDA": ["OFF", "ON"]}, {}, "ON"),
        ({"cmake.args": ["-DX=1", "-DGPUFS_CUDA=OFF"]}, {}, "OFF"),
        ({"cmake.args": "-DGPUFS_CUDA:STRING=ON"}, {}, "ON"),
        ({}, {"CMAKE_ARGS": "-DOTHER=1 -DGPUFS_CUDA=ON"}, "ON"),
        ({"other": "x"}, {"CMAKE_ARGS": "-DOTHER=GPUFS_CUDA"}, "AUTO"),
    ],
)
def test_what_is_asked_for_is_understood(
    choose_cuda: Any, settings: Any, environment: Any, request_: str
) -> None:
    assert choose_cuda.requested(settings, environment) == request_


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("nvcc", [None, Path("/nvcc")])
def test_gpu_code_is_built_where_it_is_of_use(
    choose_cuda: Any, monkeypatch: pytest.MonkeyPatch, has_gpu: bool, nvcc: Path | None
) -> None:
    monkeypatch.setattr(choose_cuda, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(choose_cuda, "find_nvcc", lambda: nvcc)
    assert choose_cuda.choose("AUTO") == (has_gpu or nvcc is not None)
    assert choose_cuda.choose("ON")
    assert not choose_cuda.choose("OFF")


def test_gpus_are_looked_for(choose_cuda: Any) -> None:
    from gpufs._machine import gpu_devices

    assert choose_cuda.has_gpu() or not gpu_devices()
