"""What the other files show on the CPU device, on a GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import gpufs
import pytest
from gpufs import _core, grep
from gpufs.doctor import SETTLING_S

from .conftest import Command, tree_lines

pytestmark = pytest.mark.skipif(not _core.examine_cuda()["gpus"], reason="no GPU here")


@pytest.fixture
def gpu() -> Iterator[gpufs.Mount]:
    with gpufs.mount(device="cuda", cache="64MiB", open_files=4096) as made:
        yield made


def test_a_gpu_is_the_default() -> None:
    with gpufs.mount(cache="16MiB") as mount:
        assert mount.device == "cuda"
        assert mount.device_name == _core.examine_cuda()["gpus"][0]["name"]


def test_cpu_and_gpu_find_the_same(gpu: gpufs.Mount, mount: gpufs.Mount, tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / str(number)).write_text("alpha beta\ngamma " * (number * number))
    dictionary = grep.Dictionary(["alpha", "beta", "gamma", "delta"])
    on_gpu = grep.search(gpu, dictionary, [tmp_path])
    on_cpu = grep.search(mount, dictionary, [tmp_path])
    assert list(on_gpu) == list(on_cpu)
    assert on_gpu.bytes == on_cpu.bytes
    counts = gpu.stats()
    assert counts["direct_bytes"] + counts["staged_bytes"] + counts["open_bytes"] >= on_gpu.bytes


def test_registered_files_are_pulled_by_the_gpu(gpu: gpufs.Mount, tmp_path: Path) -> None:
    if gpu.direct_path != "on":
        pytest.skip(f"no direct path here: {gpu.direct_path}")
    file = tmp_path / "file"
    # the first pages of each extent are staged, by all who come before its address is known
    lines = 8_000_000
    file.write_text("alpha beta\n" * lines)
    time.sleep(SETTLING_S)
    assert gpu.register_file(file) >= file.stat().st_size
    before = gpu.stats()["direct_bytes"]
    (match,) = grep.search(gpu, grep.Dictionary(["alpha"]), [file])
    assert match.count == lines
    assert gpu.stats()["direct_bytes"] - before >= file.stat().st_size // 2
    gpu.drop_extents()


def test_the_command_line_searches_on_the_gpu(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cuda", "--json", "-f", words, tree)
    assert json.loads(done.stdout)["device"] == "cuda"
    assert (done.stderr, done.returncode) == (b"", 0)
    assert run("grep", "--cache", "64MiB", "-f", words, tree).stdout == tree_lines(tree)


def test_doctor_is_content(run: Command) -> None:
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    assert [finding for finding in found["findings"] if finding["level"] == "fail"] == []
    assert found["device"] == "cuda"
    assert found["gpus"]
    assert found["cuda"]["driver_supports"]
