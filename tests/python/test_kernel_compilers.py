"""Kernel compilers in Python accept the headers, examples and Numba calls, without a GPU."""

from __future__ import annotations

import errno
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpufs
import pytest
from cuda.bindings import nvrtc
from cuda.core import Linker, LinkerOptions, ObjectCode
from gpufs import _core

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
HEADERS = Path(gpufs.include_dirs()[0])

DEVICE_CODE = Path(gpufs.__file__).parent / "numba" / "device_calls.fatbin"

needs_device_code = pytest.mark.skipif(
    _core.built_cuda_version == 0 and not DEVICE_CODE.exists(),
    reason="gpufs was built without CUDA",
)


def succeed(result: tuple[Any, ...]) -> Any:
    """Returns what a call of NVRTC gives beside its status."""
    status, *values = result
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, status
    return values[0] if values else None


def compile_to(kind: str, source: str, options: Sequence[str] = ()) -> bytes:
    """Compiles by NVRTC, to ``PTX`` or ``LTOIR``."""
    words = [*gpufs.compile_options(), "-arch=compute_90", "-rdc=true", *options]
    # Optimized PTX takes eight times as long, and nobody runs it.
    words.append("-dlto" if kind == "LTOIR" else "-Ofc=max")
    program = succeed(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
    log = bytearray(succeed(nvrtc.nvrtcGetProgramLogSize(program)))
    succeed(nvrtc.nvrtcGetProgramLog(program, log))
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    assert log == b"\0", f"warnings: {log.decode()}"
    code = bytearray(succeed(getattr(nvrtc, f"nvrtcGet{kind}Size")(program)))
    succeed(getattr(nvrtc, f"nvrtcGet{kind}")(program, code))
    succeed(nvrtc.nvrtcDestroyProgram(program))
    return bytes(code)


def test_headers_are_found() -> None:
    assert (HEADERS / "gpufs" / "gpufs.cuh").is_file()
    standard, include, macro = gpufs.compile_options()
    assert (standard, include) == ("-std=c++20", f"-I{HEADERS}")
    assert re.fullmatch(r"-DGPUFS_HEADERS=0x[0-9a-f]{16}", macro)


def test_headers_are_those_of_the_source() -> None:
    source = ROOT / "include" / "gpufs"
    installed = HEADERS / "gpufs"
    names = sorted(file.relative_to(source) for file in source.rglob("*.*"))
    assert sorted(file.relative_to(installed) for file in installed.rglob("*.*")) == names
    assert [
        name for name in names if (installed / name).read_bytes() != (source / name).read_bytes()
    ] == []


# launch.cuh is for launching from C++; *.hpp are for the host.
@pytest.mark.parametrize(
    "header",
    sorted(
        str(file.relative_to(HEADERS)) for file in HEADERS.rglob("*.cuh") if file.stem != "launch"
    ),
)
def test_a_header_needs_no_other(header: str) -> None:
    assert compile_to("LTOIR", f'#include <{header}>\nextern "C" __global__ void nothing() {{}}\n')


# CuPy sets both.
@pytest.mark.parametrize(
    "options", [(), ("-default-device", "-ftz=true")], ids=["plain", "as CuPy"]
)
def test_all_calls_of_all_groups_compile(options: Sequence[str]) -> None:
    assert compile_to("LTOIR", (ROOT / "python" / "src" / "device_calls.cu").read_text(), options)


def test_streams_and_text_compile() -> None:
    source = r"""
#include <gpufs/stream.cuh>
#include <gpufs/text/parse_integer.cuh>
#include <gpufs/text/parse_number.cuh>
#include <gpufs/text/token.cuh>

enum class color : unsigned char { red = 3 };

extern "C" __global__ void use(const gpufs::mount_ref* fs, char* buffer, double* number,
                               long* integer) {
  const auto warp = gpufs::this_warp();
  gpufs::file_stream file(warp, *fs, 3, buffer, 4096);
  gpufs::text_piece line;
  while (file.read_line(line) > 0) {
    *integer = gpufs::parse_number(line.text, *number);
    *integer += gpufs::parse_integer(line.text, *integer);
    (void)file.print("%d %s %g %p %u %s\n", color::red, "text", *number, buffer, 7ul, line.text);
  }
  *number = gpufs::view<double>(*fs, 3)[7];
}
"""
    assert compile_to("LTOIR", source)


@pytest.mark.parametrize(("group", "takes_any"), [("this_warp", False), ("converged_lanes", True)])
def test_a_warp_is_not_whatever_lanes_are_converged(group: str, takes_any: bool) -> None:
    source = f"""
#include <gpufs/gpufs.cuh>

extern "C" __global__ void use(const gpufs::mount_ref* fs, char* buffer) {{
  (void)gpufs::gread(gpufs::{group}(), *fs, 3, buffer, 16, 0);
}}
"""
    assert (b"activemask" in compile_to("PTX", source)) == takes_any


def test_what_stands_in_for_the_standard_library_is_as_there() -> None:
    source = r"""
#include <gpufs/base/standard.cuh>

enum plain {};
enum class scoped : short {};

static_assert(sizeof(std::int8_t) == 1 && sizeof(std::uint16_t) == 2 && sizeof(std::int32_t) == 4);
static_assert(std::is_same_v<decltype(sizeof 0), std::size_t> &&
              std::is_same_v<std::size_t, std::uint64_t>);
static_assert(std::is_same_v<std::conditional_t<true, int, char>, int>);
static_assert(std::is_same_v<std::conditional_t<false, int, char>, char>);
static_assert(std::is_same_v<std::decay_t<const int&>, int> &&
              std::is_same_v<std::decay_t<volatile int&&>, int>);
static_assert(std::is_same_v<std::decay_t<const char (&)[4]>, const char*>);
static_assert(std::is_same_v<std::decay_t<char* const>, char*>);
static_assert(std::is_enum_v<plain> && std::is_enum_v<scoped> && !std::is_enum_v<int>);
static_assert(std::is_same_v<std::underlying_type_t<scoped>, short>);
static_assert(std::is_integral_v<bool> && std::is_integral_v<const long long> &&
              std::is_integral_v<char>);
static_assert(!std::is_integral_v<float> && !std::is_integral_v<int*> &&
              !std::is_integral_v<scoped>);
static_assert(std::is_signed_v<int> && std::is_signed_v<double> && std::is_signed_v<const long>);
static_assert(!std::is_signed_v<unsigned> && !std::is_signed_v<bool> && !std::is_signed_v<int*>);
static_assert(!std::is_signed_v<scoped>);
static_assert(std::is_pointer_v<const char*> && std::is_pointer_v<char* const> &&
              !std::is_pointer_v<long>);
static_assert(std::is_null_pointer_v<decltype(nullptr)> && !std::is_null_pointer_v<char*>);

extern "C" __global__ void nothing() {}
"""
    assert compile_to("LTOIR", source)
    # The same is true of the library that it stands in for.
    host = source.replace('extern "C" __global__ void nothing() {}', "")
    subprocess.run(
        ["g++", "-std=c++20", "-x", "c++", "-fsyntax-only", f"-I{HEADERS}", "-"],
        input=host,
        text=True,
        check=True,
        timeout=60,
    )


def test_constants_are_those_of_this_system() -> None:
    text = (HEADERS / "gpufs" / "base" / "standard.cuh").read_text()
    constants = dict(re.findall(r"^#define (\w+) (\w+)$", text, re.MULTILINE))
    assert len(constants) > 40
    for name, text in constants.items():
        value = constants.get(text, text)
        number = int(value, 8) if value.startswith("0") else int(value)
        assert number == getattr(errno, name, getattr(os, name, None)), name


@pytest.mark.parametrize("example", ["cuda_core", "cupy_raw_module", "torch_compile_kernel"])
def test_kernels_of_examples_compile(example: str) -> None:
    kernel = runpy.run_path(str(EXAMPLES / f"{example}.py"))["KERNEL"]
    assert b".entry" in compile_to("PTX", kernel)
    assert compile_to("LTOIR", kernel)


@pytest.fixture
def h100_for_numba(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Numba asks the GPU that is there what to compile for."""
    from numba.cuda import dispatcher

    h100 = (9, 0)
    monkeypatch.setattr(
        dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=h100)
    )
    return h100


def compile_by_numba(
    kernel: Callable[..., None], signature: object, capability: tuple[int, int]
) -> bytes:
    """Compiles a kernel, which must need gpufs's device code. Returns its intermediate code."""
    from numba import cuda

    (code, *linked), _ = cuda.compile_all(
        kernel, signature, device=False, abi="numba", output="ltoir", cc=capability
    )
    assert [file.data for file in linked] == [DEVICE_CODE.read_bytes()]
    return code


@needs_device_code
def test_the_numba_example_compiles(h100_for_numba: tuple[int, int]) -> None:
    from numba.cuda import types

    path, result = types.Array(types.uint8, 1, "C"), types.Array(types.int64, 1, "C")
    kernel = runpy.run_path(str(EXAMPLES / "numba_kernel.py"))["add_up"]
    assert compile_by_numba(kernel, types.void(types.int64, path, path, result), h100_for_numba)


# All groups in one kernel, because a link takes ten seconds.
@needs_device_code
def test_each_call_links_in_numba(h100_for_numba: tuple[int, int]) -> None:
    from numba.cuda import types

    by_thread, by_warp, by_block = map(use_of, ("thread", "warp", "block"))

    def use(fs, path, matrix, result) -> None:
        by_thread(fs, path, matrix, result)
        by_warp(fs, path, matrix, result)
        by_block(fs, path, matrix, result)

    path, result = types.Array(types.uint8, 1, "C"), types.Array(types.int64, 1, "C")
    # The handle as an array, as those have it who pass the object itself.
    handle, matrix = types.Array(types.uint8, 1, "C"), types.Array(types.float32, 2, "C")
    compiled = compile_by_numba(use, types.void(handle, path, matrix, result), h100_for_numba)
    parts = [ObjectCode.from_ltoir(compiled), ObjectCode.from_fatbin(DEVICE_CODE.read_bytes())]
    # As Numba links, but for the optimization.
    options = LinkerOptions(arch="sm_90", link_time_optimization=True, optimization_level=0)
    code = Linker(*parts, options=options).link("cubin").code
    for name in ("thread", "warp", "block"):
        for call in getattr(gpufs.numba, name).__all__:
            assert f"gpufs_{name}_{call}".encode() in code


def use_of(name: str) -> Callable[..., None]:
    """Returns a device function that makes all calls of a group."""
    import gpufs.numba
    from numba import cuda

    group = getattr(gpufs.numba, name)
    willneed = os.POSIX_FADV_WILLNEED

    @cuda.jit(device=True)
    def use(fs, path, matrix, result) -> None:
        fd = group.gopen(fs, path, os.O_RDWR | os.O_CREAT, 0o600)
        result[0] = group.gfadvise(fs, fd, 0, 0, willneed)
        result[1] = group.gread(fs, fd, matrix[3], matrix[3].nbytes, 100)
        result[2] = group.gwrite(fs, fd, gpufs.numba.address_of(matrix) + 16, 100, 0)
        result[3] = group.gfsize(fs, fd)
        result[4] = group.gfsync(fs, fd) + group.gftruncate(fs, fd, 50)
        result[5] = (
            group.gclose(fs, fd) + group.grename(fs, path, path[1:]) + group.gunlink(fs, path)
        )

    return use


@needs_device_code
def test_numba_refuses_memory_with_gaps(h100_for_numba: tuple[int, int]) -> None:
    import gpufs.numba
    from numba.cuda import types

    def use(fs, path) -> None:
        gpufs.numba.thread.gopen(fs, path[::2])

    with pytest.raises(Exception, match=r"No implementation of .*address_of"):
        signature = types.void(types.int64, types.Array(types.uint8, 1, "C"))
        compile_by_numba(use, signature, h100_for_numba)


@needs_device_code
def test_a_path_with_a_zero_is_refused() -> None:
    import gpufs.numba

    with pytest.raises(ValueError, match="zero"):
        gpufs.numba.device_path("a\0b")


def test_without_device_code_the_error_says_so(tmp_path: Path) -> None:
    package = Path(gpufs.__file__).parent
    (tmp_path / "gpufs").mkdir()
    for file in package.iterdir():
        if file.name != "numba":
            (tmp_path / "gpufs" / file.name).symlink_to(file)
    shutil.copytree(
        package / "numba", tmp_path / "gpufs" / "numba", ignore=shutil.ignore_patterns("*.fatbin")
    )
    program = """
try:
    import gpufs.numba
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=dict(os.environ) | {"PYTHONPATH": str(tmp_path)},
    )
    assert "built without CUDA" in done.stdout


def test_without_numba_the_error_says_what_is_missing() -> None:
    program = """
import sys
sys.modules["numba"] = None
import gpufs
try:
    import gpufs.numba
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "numba-cuda" in done.stdout


def test_importing_gpufs_imports_no_compiler() -> None:
    program = (
        "import sys, gpufs; "
        "print([name for name in ('numba', 'numpy', 'cuda') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_the_handle_of_the_cpu_is_in_host_memory(mount: gpufs.Mount) -> None:
    ref = mount.device_ref()
    assert ref.address == mount.device_ref().address
    assert ref.mount is mount
    assert hex(ref.address) in repr(ref)
    assert not hasattr(ref, "__cuda_array_interface__")
    mount.close()
    with pytest.raises(ValueError, match="closed"):
        mount.device_ref()


def test_the_handle_of_a_gpu_is_an_array_of_bytes(
    monkeypatch: pytest.MonkeyPatch, mount: gpufs.Mount
) -> None:
    monkeypatch.setattr(gpufs.Mount, "device", "cuda")
    ref = mount.device_ref()
    interface = ref.__cuda_array_interface__
    assert interface["data"] == (ref.address, False)
    assert interface["shape"] == (_core.device_ref_bytes,)
    assert (interface["typestr"], interface["version"]) == ("|u1", 3)
