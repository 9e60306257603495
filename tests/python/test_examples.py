"""The Python examples run, and notice when what they read is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gpufs
import pytest
from gpufs import _core

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "python"
# The others have kernels of their own: test_kernels_on_gpu.py runs them.
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if "import support" in path.read_text())
SECONDS_MAX = 60  # of one, on a machine that has much else to do

Example = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Example:
    """Runs an example in a folder where nothing else is."""

    def example(name: str, *options: str) -> subprocess.CompletedProcess[str]:
        package = str(
            Path(gpufs.__file__).parents[1]
        )  # the one that is tested, also where it is not installed
        return subprocess.run(
            [sys.executable, FOLDER / f"{name}.py", *options],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            cwd=tmp_path,
            env=dict(os.environ) | {"TMPDIR": str(tmp_path), "PYTHONPATH": package},
        )

    return example


def numbers_of(output: str) -> dict[str, float]:
    """What the last line of an example says."""
    last = output.splitlines()[-1]
    found = re.search(
        r"([\d,.]+) MB in .*?([\d.]+) GB/s; .*? ([\d,]+) direct, .* ([\d,.]+) MB from the file$",
        last,
    )
    assert found is not None, last
    return dict(
        zip(
            ("read", "gb_per_s", "direct", "loaded"),
            (float(n.replace(",", "")) for n in found.groups()),
            strict=True,
        )
    )


def test_there_are_examples() -> None:
    assert EXAMPLES == ["graph_features", "recommender_embeddings", "safetensors_checkpoint"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_on_the_cpu(run: Example, tmp_path: Path, name: str) -> None:
    done = run(name, "--device", "cpu")
    assert (done.stderr, done.returncode) == ("", 0)
    first, last = done.stdout.splitlines()
    data, cache = re.search(r"([\d,.]+) MB", first), re.search(r"cache (\d+) bytes", first)
    assert data is not None
    assert cache is not None
    assert float(data[1].replace(",", "")) * 1e6 > 2 * int(
        cache[1]
    )  # larger than the cache, as it says
    assert "by NumPy" in first
    assert "all as NumPy's" in last
    told = numbers_of(done.stdout)
    assert told["read"] > 10
    assert 0 < told["loaded"] <= told["read"] * 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_help(run: Example, name: str) -> None:
    done = run(name, "--help")
    assert (done.stderr, done.returncode) == ("", 0)
    options = set(re.findall(r"^  (?:-h, )?(--[\w-]+)", done.stdout, re.MULTILINE))
    assert {"--help", "--device", "--cache", "--folder", "--seed", "--no-register"} < options


SPOILT = """
import runpy, sys
import gpufs
import numpy as np

read_selection = gpufs.File.read_selection

def spoilt(self, *arguments, **keywords):
    result = read_selection(self, *arguments, **keywords)
    if result.dtype == np.float32 and result.size:
        result.flat[-1] += 1
    return result

gpufs.File.read_selection = spoilt
sys.argv = sys.argv[1:]
sys.path.insert(0, {folder!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_notices_wrong_data(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SPOILT.format(folder=str(FOLDER)),
            FOLDER / f"{name}.py",
            "--device",
            "cpu",
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env=dict(os.environ) | {"TMPDIR": str(tmp_path)},
    )
    assert re.fullmatch(
        r"(batch|pass) 0(, hop \d)?: not what NumPy makes of the file\n", done.stderr
    )
    assert done.returncode == 1


def test_options_reach_the_example(run: Example, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    options = (
        "--device",
        "cpu",
        "--cache",
        "1MiB",
        "--folder",
        str(folder),
        "--rows",
        "5000",
        "--batches",
        "2",
    )
    done = run("recommender_embeddings", *options, "--no-register", "--keep", "always")
    assert (done.stderr, done.returncode) == ("", 0)
    assert "cache 1048576 bytes" in done.stdout
    assert "; 0 evictions" not in done.stdout
    assert f"{2 * 512 * 20:,} lookups" in done.stdout
    assert (folder / "table.npy").stat().st_size == 128 + 5000 * 64 * 4


@pytest.mark.skipif(not _core.examine_cuda()["gpus"], reason="no GPU here")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_on_a_gpu(run: Example, name: str) -> None:
    done = run(name, "--device", "cuda")
    assert (done.stderr, done.returncode) == ("", 0)
    assert "all as NumPy's" in done.stdout


@pytest.mark.skipif(not _core.examine_cuda()["gpus"], reason="no GPU here")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_computes_with_torch_on_a_gpu(run: Example, name: str) -> None:
    torch = pytest.importorskip("torch", reason="no PyTorch here")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    assert "by PyTorch on cuda:0" in run(name, "--device", "cuda").stdout
