"""What the build backend builds for; no build is made."""

from __future__ import annotations

import fcntl
import importlib
import os
import subprocess
import sys
import termios
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


@pytest.mark.parametrize(
    ("environment", "found", "wanted"),
    [
        ({}, [], "90"),
        ({}, ["80"], "80"),
        ({}, ["80", "90", "100"], "80-real;90-real;100"),
        ({}, ["75"], "90"),
        ({}, ["75", "89"], "89"),
        ({"CUDAARCHS": "all"}, ["80"], "all"),
        ({"CMAKE_ARGS": "-DCMAKE_CUDA_ARCHITECTURES=75;80"}, ["90"], "75;80"),
    ],
)
def test_gpu_code_is_built_for_the_gpus_of_the_machine(
    choose_cuda: Any, environment: Any, found: list[str], wanted: str
) -> None:
    assert choose_cuda.architectures(None, environment, found)[0] == wanted


def test_compute_capabilities_are_those_that_the_driver_lists(
    choose_cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\nprintf '10.0\\n9.0\\n10.0\\n[N/A]\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", os.fspath(tmp_path), prepend=os.pathsep)
    assert choose_cuda.compute_capabilities() == ["90", "100"]
    driver.write_text("#!/bin/sh\nexit 9\n")
    assert choose_cuda.compute_capabilities() == []


BUILD = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from progress import say, shown
say("building something")
with shown():
    subprocess.run(["printf", "[1/3] one\\n[3/3] three\\n"], check=True)
print("after", flush=True)
"""


def test_a_build_shows_its_steps_on_the_terminal(tmp_path: Path) -> None:
    terminal, other = os.openpty()
    with (tmp_path / "output").open("w+b") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", BUILD, BACKEND],
            stdin=other,
            stdout=output,
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )
        os.close(other)
        assert child.wait(60) == 0
        output.seek(0)
        assert output.read() == b"gpufs: building something\n[1/3] one\n[3/3] three\nafter\n"
    shown = os.read(terminal, 4096)
    os.close(terminal)
    assert b"gpufs: building something\r\n" in shown
    assert b"step 3 of 3" in shown


def test_a_build_without_a_terminal_has_its_output_only() -> None:
    child = subprocess.run(
        [sys.executable, "-c", BUILD, BACKEND],
        capture_output=True,
        check=True,
        start_new_session=True,
        timeout=60,
    )
    assert child.stdout == b"gpufs: building something\n[1/3] one\n[3/3] three\nafter\n"


def test_gpus_are_looked_for(choose_cuda: Any) -> None:
    from gpufs._machine import gpu_devices

    assert choose_cuda.has_gpu() or not gpu_devices()
