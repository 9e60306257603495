"""How programs find the driver: each way must end in gdev, and nothing else may change for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .simulated_gpu import Gpu, status_of

SUM = 3000  # of the programs' 1,000 numbers


def test_a_linked_program_runs_without_gdev(gpu: Gpu) -> None:
    status = status_of(gpu.run("linked", gpu.kernels, under_gdev=False))
    assert status == {"gdev": False, "sum": SUM}


def test_a_linked_program_runs_under_gdev(gpu: Gpu) -> None:
    status = status_of(gpu.run("linked", gpu.kernels))
    assert status["gdev"] and status["sum"] == SUM
    assert status["driver"] == str(gpu.driver)
    assert status["launches"] == 2


@pytest.mark.parametrize("how", ["names", "addresses", "per-thread"])
@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "path", "path without version"])
def test_a_program_that_opens_the_driver_gets_gdev(gpu: Gpu, how: str, name: str) -> None:
    spelled = {
        "path": str(gpu.driver),
        "path without version": str(gpu.driver.with_name("libcuda.so")),
    }.get(name, name)
    status = status_of(gpu.run("opened", gpu.kernels, spelled, how))
    assert status["gdev"] and status["sum"] == SUM and status["launches"] == 2
    assert status["unknown"] == []
    # The ten functions, and cuGetProcAddress itself.
    assert status["lookups"] == (0 if how == "names" else 11)


def test_a_name_space_of_its_own_is_a_bypass_that_is_counted(gpu: Gpu) -> None:
    status = status_of(gpu.run("opened", gpu.kernels, str(gpu.driver), "space"))
    assert status["sum"] == SUM
    assert status["bypasses"] == 1 and status["launches"] == 0


@pytest.mark.parametrize("how", ["names", "addresses"])
def test_a_function_that_no_driver_has_is_missing(gpu: Gpu, how: str) -> None:
    process = gpu.run("opened", gpu.kernels, "libcuda.so.1", how, "cuNoSuchFunction")
    assert process.stdout.splitlines()[0] == "cuNoSuchFunction missing"
    assert status_of(process)["unknown"] == []


@pytest.mark.parametrize("how", ["names", "addresses"])
def test_a_function_that_this_driver_lacks_is_missing(gpu: Gpu, how: str) -> None:
    """A function of the table must not look as if the driver had it."""
    process = gpu.run("opened", gpu.kernels, "libcuda.so.1", how, "cuTexRefGetArray")
    assert process.stdout.splitlines()[0] == "cuTexRefGetArray missing"


@pytest.mark.parametrize("how", ["names", "addresses"])
def test_a_function_that_the_table_lacks_is_passed_on_and_named(gpu: Gpu, how: str) -> None:
    process = gpu.run(
        "opened", gpu.kernels, "libcuda.so.1", how, "cuFunctionOfTomorrow", "cuFunctionOfTomorrow"
    )
    assert process.stdout.splitlines()[:2] == ["cuFunctionOfTomorrow found"] * 2
    status = status_of(process)
    assert status["unknown"] == ["cuFunctionOfTomorrow"]
    assert status["unknown_calls"] == 2


@pytest.mark.parametrize("kind", ["static", "shared"])
def test_the_runtime_finds_the_driver_through_gdev(gpu: Gpu, kind: str) -> None:
    """The runtime stops at a private table, which the simulated driver lacks; it had come to us."""
    with_gdev = gpu.run(f"runtime_{kind}")
    without = gpu.run(f"runtime_{kind}", under_gdev=False)
    status = status_of(with_gdev)
    assert status["lookups"] > 0
    assert status["unknown"] == []
    assert with_gdev.stdout.splitlines()[0] == without.stdout.splitlines()[0]


def test_without_a_driver_it_looks_as_without_gdev(gpu: Gpu, tmp_path: Path) -> None:
    missing = {"LD_LIBRARY_PATH": str(tmp_path), "GDEV_DRIVER": str(tmp_path / "nosuch")}
    process = gpu.run("opened", gpu.kernels, "libcuda.so.1", "names", env=missing)
    assert process.returncode == 1
    assert '"failed": "dlopen"' in process.stdout
    for program in ("runtime_static", "runtime_shared"):
        with_gdev = gpu.run(program, env=missing)
        error, devices = with_gdev.stdout.splitlines()[0].split()
        assert error == "35" and devices == "0"  # cudaErrorInsufficientDriver


def test_the_interposer_never_takes_itself_for_the_driver(gpu: Gpu, tmp_path: Path) -> None:
    """The folder of a copy of gdev may be on the path that is searched."""
    copy = tmp_path / "libcuda.so.1"
    copy.symlink_to(gpu.interposer)
    folders = {"LD_LIBRARY_PATH": f"{tmp_path}:{gpu.interposer.parent}:{gpu.driver.parent}"}
    status = status_of(gpu.run("opened", gpu.kernels, "libcuda.so.1", "names", env=folders))
    assert status["driver"] == str(gpu.driver)


def test_a_chosen_driver_is_used(gpu: Gpu, tmp_path: Path) -> None:
    chosen = tmp_path / "libother.so"
    shutil.copy(gpu.driver, chosen)
    status = status_of(gpu.run("linked", gpu.kernels, env={"GDEV_DRIVER": str(chosen)}))
    assert status["driver"] == str(chosen) and status["sum"] == SUM


def test_a_program_without_a_gpu_loads_no_driver(gpu: Gpu) -> None:
    """Each program that a shell starts under gdev has the library in it."""
    maps = gpu.run(Path("/bin/cat"), "/proc/self/maps").stdout
    assert str(gpu.interposer) in maps
    assert str(gpu.driver) not in maps
    assert not gpu.memory.exists()


@pytest.mark.parametrize("under_gdev", [False, True])
def test_a_library_may_use_the_driver_while_it_is_loaded(gpu: Gpu, under_gdev: bool) -> None:
    """Its thread holds the loader's lock; another thread loads the driver at the same time."""
    library = gpu.kernels.with_name("libslow_library.so")
    process = gpu.run("loading", library, under_gdev=under_gdev)
    assert process.stdout.split()[0] == "0", process.stdout + process.stderr


def test_programs_may_come_from_programs(gpu: Gpu) -> None:
    """A shell, its children, and their children run under gdev."""
    command = f"/bin/sh -c '{os.fsdecode(gpu.kernels.parent)}/linked {gpu.kernels}'"
    process = gpu.run(Path("/bin/sh"), "-c", command)
    assert status_of(process)["gdev"]


def test_it_exports_the_names_of_the_driver_and_its_own(gpu: Gpu) -> None:
    """Anything else could take the place of a program's own function."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", gpu.interposer],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    others = {name for name in listed if not name.startswith("cu")}
    loaders = {"dlopen", "dlmopen", "dlsym"}
    keyed = {"gshmget", "gshmat", "gshmdt", "gshmctl"}
    assert others == loaders | keyed | {"gdev_status", "gdev_unknown_function"}
    assert len(listed) > 600
