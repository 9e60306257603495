"""What gdev's tests share: a GPU for each test."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .gdev_daemon import COMMANDS, Daemon
from .jobs import GPUS, Job, Start
from .simulated_gpu import ROOT, Gpu, gpu_folder

# What gdev uses of gpufs is not installed where the tests run.
sys.path.insert(0, str(ROOT / "python"))


@pytest.fixture(scope="session", autouse=True)
def _commands() -> Iterator[None]:
    yield
    COMMANDS.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GDEV_TEST_SHARE=I/N chooses each Nth test, and all that hostile messages do."""
    share = os.environ.get("GDEV_TEST_SHARE")
    if share:
        index, shares = map(int, share.split("/"))
        items[:] = [
            item
            for number, item in enumerate(items)
            if number % shares == index or item.path.name == "test_protocol.py"
        ]


@pytest.fixture(autouse=True)
def no_sanitizer_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test of a sanitized build when any of its programs has reported something."""
    for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
        options = [os.environ.get(name, ""), f"log_path={tmp_path / 'report'}"]
        monkeypatch.setenv(name, ":".join(options))
    yield
    reports = [path.read_text(errors="replace") for path in tmp_path.glob("report.*")]
    assert not reports, "\n".join(reports)


@pytest.fixture
def gpu_files() -> Iterator[Path]:
    """The folder of a test's simulated GPUs."""
    with gpu_folder() as folder:
        yield folder


@pytest.fixture
def gpu(gpu_files: Path) -> Gpu:
    """A simulated GPU of 64 MiB."""
    return Gpu(gpu_files / "gpu", 64 << 20)


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


@pytest.fixture
def large_vgpus(daemon: Daemon) -> Daemon:
    """A daemon with the virtual GPUs ``a`` and ``b``, whose limits are above the GPU's 64 MiB."""
    for name in ("a", "b"):
        daemon.must("vgpu", "add", name, "--memory", "128MiB")
    return daemon


@pytest.fixture
def gpus(gpu: Gpu, gpu_files: Path) -> list[Gpu]:
    """Two simulated GPUs of 64 MiB each."""
    return [gpu, Gpu(gpu_files / "other_gpu", gpu.bytes)]


@pytest.fixture
def start(large_vgpus: Daemon, gpus: list[Gpu], tmp_path: Path) -> Iterator[Start]:
    """Starts jobs in the virtual GPUs ``a`` and ``b``, and ends them after the test."""
    with contextlib.ExitStack() as started:

        def run(vgpu: str, rounds: int, ranks: Sequence[int] = range(GPUS)) -> Job:
            made = Job(large_vgpus, gpus, tmp_path, vgpu, rounds, f"job of {vgpu}")
            started.callback(made.kill)
            made.run(*ranks)
            return made

        yield run
