from __future__ import annotations

import doctest
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import gpufs
import pytest
from gpufs import cat, grep, linear, metrics, search

IMPORT_MS_MAX = 150


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def test_importing_is_fast() -> None:
    # Its own time, because other tests run beside it; warm, it waits for nothing.
    program = (
        "import time; t = time.process_time(); import gpufs; print((time.process_time() - t) * "
        "1000)"
    )
    assert min(float(python(program)) for _ in range(5)) < IMPORT_MS_MAX


def test_importing_touches_neither_gpu_nor_command_line() -> None:
    program = """
import json, sys
import gpufs
maps = open("/proc/self/maps").read()
print(json.dumps([[name for name in ("typer", "rich", "numpy") if name in sys.modules],
                  "libcuda.so" in maps,
                  "nvidia" in maps]))
"""
    assert json.loads(python(program)) == [[], False, False]


def test_everything_public_is_an_attribute() -> None:
    program = """
import gpufs, sys
assert [name for name in sys.modules if name.startswith("gpufs.")] == []
for name in gpufs.__all__:
    getattr(gpufs, name)
assert set(gpufs.__all__) <= set(dir(gpufs))
from gpufs import *
for name in (
    "bench", "cat", "collage", "doctor", "grep", "linear", "metrics", "search", "sizes", "stat",
    "top",
):
    assert getattr(gpufs, name).__name__ == "gpufs." + name
print(gpufs.linear.matvec.__name__)
for name in ("nothing", "_nothing", "cli_"):
    assert not hasattr(gpufs, name)
try:
    gpufs.nothing
except AttributeError as error:
    print(error)
"""
    assert python(program) == "matvec\nmodule 'gpufs' has no attribute 'nothing'\n"


def test_a_module_whose_library_is_missing_says_so() -> None:
    program = """
import sys
sys.modules["torch"] = None
import gpufs
assert not hasattr(gpufs, "torch")
try:
    gpufs.torch
except AttributeError as error:
    print(error)
try:
    from gpufs import torch
except ImportError as error:
    print(error.name)
"""
    first, second = python(program).splitlines()
    assert first.startswith("module 'gpufs' has no attribute 'torch': ")
    assert second == "torch"


def test_the_command_line_imports_no_rich_for_plain_output() -> None:
    program = """
import sys
from gpufs.cli import main
try:
    main(["grep", "-f", "/dev/null", "/dev/null/none"])
except SystemExit:
    pass
sys.exit("rich" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [gpufs, cat, grep, linear, metrics, search])
def test_examples_in_docstrings_are_true(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0


def test_users_programs_type_check(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    program = tmp_path / "program.py"
    program.write_text(
        """
import gpufs
from gpufs import grep, metrics

with gpufs.mount(device="cpu", cache="1GiB", page=4096) as mount:
    rows: int = gpufs.linear.matvec(mount, "a.npy", "x.npy", "y.npy").rows
    hits: int = mount.stats()["hits"]
    histogram: list[int] = mount.stats()["fault_latency_ns"]
    size: int = mount.register_file("file")
    names: list[str] = [
        name for name, entry in mount.tensors("model").items() if entry.dtype == "float32"
    ]
    address: int = mount.device_ref().address
    options: list[str] = gpufs.compile_options()
    result = grep.search(mount, grep.Dictionary(["word", b"word"]), ["path", b"path"])
    for match in result:
        count: int = match.count
    errors: list[OSError] = result.failures
    with (
        mount.serve_metrics(port=0, files=True) as server,
        metrics.serve([mount], address="::1") as other,
    ):
        port: int = server.port
        url: str = other.url
gpufs.mount(device="gpu")  # E: one error, here
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", program],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert "incompatible type \"Literal['gpu']\"" in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


def test_the_stubs_name_what_the_extension_has() -> None:
    import ast

    from gpufs import _core

    package = Path(gpufs.__file__).parent
    assert (package / "py.typed").exists()
    stubs = ast.parse((package / "_core.pyi").read_text())
    for node in stubs.body:
        if isinstance(node, ast.FunctionDef):
            assert hasattr(_core, node.name)
        elif isinstance(node, ast.ClassDef) and not node.decorator_list:
            described = {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
            there = {name for name in vars(getattr(_core, node.name)) if not name.startswith("__")}
            assert {name for name in described if not name.startswith("__")} == there
