"""Kernels that compilers in Python make use files: the examples, each as its users would run it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import gpufs
import pytest
from gpufs import _core

pytestmark = pytest.mark.skipif(not _core.examine_cuda()["gpus"], reason="no GPU here")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
# pytest's way of importing leaves sys.path alone; programs that it starts are to find the same
# package.
PACKAGES = Path(gpufs.__file__).parent.parent

# To compile a kernel takes some 40 s of one processor, where nothing was kept of an earlier run.
TIMEOUT_S = 600


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize(
    ("example", "library", "arguments"),
    [
        ("cupy_raw_module", "cupy", ["nvrtc"]),
        ("cupy_raw_module", "cupy", ["nvcc"]),
        ("cuda_core", "cuda.core", []),
        ("torch_compile_kernel", "torch", []),
        ("numba_kernel", "numba.cuda", []),
    ],
)
def test_the_example_works(example: str, library: str, arguments: list[str]) -> None:
    if not is_there(library):
        pytest.skip(f"{library} is not installed")
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=dict(os.environ) | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, done.stdout


def test_the_handle_lies_in_gpu_memory() -> None:
    if not is_there("cupy"):
        pytest.skip("cupy is not installed")
    import cupy

    with gpufs.mount(device="cuda", cache="64MiB") as mount:
        ref = mount.device_ref()
        handle = cupy.asarray(ref)
        assert handle.data.ptr == ref.address
        assert handle.nbytes == _core.device_ref_bytes
        assert handle.any()


def is_there(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # what it is part of is not there
        return False
