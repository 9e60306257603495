"""What gdev's tests share: a GPU for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .gdev_daemon import COMMANDS, Daemon
from .simulated_gpu import ROOT, Gpu

# What gdev uses of gpufs is not installed where the tests run.
sys.path.insert(0, str(ROOT / "python"))


@pytest.fixture(scope="session", autouse=True)
def _commands() -> Iterator[None]:
    yield
    COMMANDS.end()


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    """A simulated GPU of 64 MiB."""
    return Gpu(tmp_path / "gpu", 64 << 20)


@pytest.fixture
def daemon(gpu: Gpu, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that runs, without virtual GPUs."""
    made = Daemon(gpu, tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def two_vgpus(daemon: Daemon) -> Daemon:
    """A daemon with the virtual GPUs ``a`` and ``b``, each with a limit of all the 64 MiB."""
    for name in ("a", "b"):
        daemon.must("vgpu", "add", name, "--memory", "64MiB")
    return daemon


@pytest.fixture
def shared(daemon: Daemon) -> Daemon:
    """A daemon with the virtual GPU ``a`` of 16 MiB."""
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    return daemon
