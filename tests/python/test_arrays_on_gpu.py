"""Files and arrays on a GPU: the behaviour of the CPU device, and what only a GPU has."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs import _core
from gpufs._device import device_array
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .array_files import DTYPES, cases, filled, npy, same
from .file_operations import random_operations
from .index_keys import keys

pytestmark = pytest.mark.skipif(not _core.examine_cuda()["gpus"], reason="no GPU here")

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]

# With direct loads, and with none.
MOUNTS = [{}, {"pinned": 0}, {"page": 65536}]


@pytest.fixture(scope="module", params=MOUNTS, ids=str)
def gpu(request: pytest.FixtureRequest) -> Iterator[gpufs.Mount]:
    with gpufs.mount(**({"device": "cuda", "cache": "16MiB"} | request.param)) as made:
        yield made


@contextlib.contextmanager
def saved(mount: gpufs.Mount, folder: Path, array: Any) -> Iterator[gpufs.FileArray]:
    with mount.array(npy(folder / "array.npy", array)) as file:
        yield file


# ---- As on the CPU device


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_keys_read_what_numpy_reads(gpu: gpufs.Mount, tmp_path: Path, data: st.DataObject) -> None:
    case = data.draw(cases(gpu, tmp_path))
    with case.file as file:
        assert same(file[...], case.array)
        for _ in range(4):
            key = data.draw(keys(case.array.shape))
            try:
                expected = np.asarray(case.array[key])  # type: ignore[index]
            except IndexError:
                with pytest.raises(IndexError):
                    file[key]
                continue
            for keep in ("auto", "always", "never"):
                assert same(file.read(key, keep=keep), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_larger_than_the_cache(gpu: gpufs.Mount, tmp_path: Path, order: Any) -> None:
    array = filled((3000, 41, 97), "<f4", order)
    rows = np.random.default_rng(1).integers(-3000, 3000, 500)
    with saved(gpu, tmp_path, array) as file:
        assert file.nbytes > gpu.cache_bytes
        for key in (
            ...,
            7,
            slice(10, 2000, 7),
            (..., 5),
            (slice(None, None, -60), 3),
            rows,
            (rows, 3),
            (0, [4, -1]),
        ):
            assert same(file[key], np.asarray(array[key]))


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_do_what_they_do_to_bytes(
    gpu: gpufs.Mount, tmp_path: Path, seed: int
) -> None:
    random_operations(gpu, tmp_path / "file", seed, 60)


def test_cpu_and_gpu_read_the_same(gpu: gpufs.Mount, mount: gpufs.Mount, tmp_path: Path) -> None:
    path = npy(tmp_path / "array.npy", filled((200, 300), "<f8"))
    with gpu.array(path) as ours, mount.array(path) as on_cpu:
        for key in (..., [5, -3], (slice(None, None, -7), 3)):
            assert same(ours[key], np.asarray(on_cpu[key]))


# ---- What a read gives


def test_results_say_what_they_are(gpu: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((5, 3), "<i4")
    with saved(gpu, tmp_path, array) as file:
        found = file[1:]
        assert isinstance(found, gpufs.DeviceArray)
        assert (found.shape, found.dtype, found.ndim, found.size) == ((4, 3), array.dtype, 2, 12)
        assert (found.itemsize, found.nbytes, len(found), found.device) == (4, 48, 4, "cuda:0")
        assert repr(found) == "<gpufs.DeviceArray (4, 3) of int32 on cuda:0>"
        assert same(np.asarray(found), array[1:])
        with pytest.raises(ValueError, match="without a copy"):
            np.array(found, copy=False)
        with pytest.raises(TypeError, match="without dimensions"):
            len(file[0, 0])
    assert same(found, array[1:])  # also when the file is closed


def test_pytorch_takes_results_without_a_copy(gpu: gpufs.Mount, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for dtype in DTYPES:
        name = dtype.name
        if name.startswith(("uint", "float8")) and name != "uint8":
            continue  # PyTorch can do little with them
        array = filled((50, 7), dtype)
        (tmp_path / "raw").write_bytes(array.tobytes())
        with gpu.array(tmp_path / "raw", dtype, array.shape) as file:
            found = file[::-1]
            assert isinstance(found, gpufs.DeviceArray)
            tensor = torch.from_dlpack(found)
            assert (tensor.data_ptr(), tuple(tensor.shape)) == (found.address, (50, 7))
            assert tensor.dtype == getattr(torch, name)
            del found  # the tensor keeps the memory
            host = tensor.cpu()
            host = (
                host.view(torch.int16) if name == "bfloat16" else host
            )  # which NumPy does not know
            assert host.numpy().tobytes() == array[::-1].tobytes()


def test_cupy_takes_results_without_a_copy(gpu: gpufs.Mount, tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    array = filled((50, 7), "<i4")
    with saved(gpu, tmp_path, array) as file:
        for take in (cupy.asarray, cupy.from_dlpack):
            found = file[::-1]
            assert isinstance(found, gpufs.DeviceArray)
            taken = take(found)
            assert taken.data.ptr == found.address
            del found
            assert same(cupy.asnumpy(taken * 2), array[::-1] * 2)


def test_numba_takes_results_without_a_copy(gpu: gpufs.Mount, tmp_path: Path) -> None:
    cuda = pytest.importorskip("numba.cuda")
    array = filled((50, 7), "<i4")
    with saved(gpu, tmp_path, array) as file:
        found = file[::-1]
        assert isinstance(found, gpufs.DeviceArray)
        taken = cuda.as_cuda_array(found)
        assert taken.device_ctypes_pointer.value == found.address
        assert same(taken.copy_to_host(), array[::-1])


def test_dlpack_refuses_other_devices_and_copies(gpu: gpufs.Mount, tmp_path: Path) -> None:
    with saved(gpu, tmp_path, filled((3,), "<i4")) as file:
        found = file[...]
        assert isinstance(found, gpufs.DeviceArray)
        assert found.__dlpack_device__() == (2, 0)
        for arguments in ({"dl_device": (1, 0)}, {"copy": True}):
            with pytest.raises(BufferError):
                found.__dlpack__(**arguments)  # type: ignore[arg-type]


# ---- Index arrays on the device


def check_index_arrays(
    gpu: gpufs.Mount, folder: Path, make: Callable[[Any], Any], dtypes: list[str]
) -> None:
    """`make` puts an array of NumPy on the device."""
    array = filled((100, 3, 50), "<f4")
    rng = np.random.default_rng(2)
    with saved(gpu, folder, array) as file, gpu.open(folder / "array.npy") as opened:
        for dtype in dtypes:
            for indices in (
                rng.integers(0, 100, 1000),
                rng.integers(0 if dtype.startswith("u") else -100, 100, (4, 5)),
                np.zeros(1, int),
                np.zeros((0, 3), int),
            ):
                place = make(indices.astype(dtype))
                assert same(file[place], array[indices])
                assert same(file[place, :, 5:9], array[indices, :, 5:9])
                assert same(file.take(place), array[indices])
                assert same(
                    file[:, 1, make((indices // 2).astype(dtype))], array[:, 1][:, indices // 2]
                )
                records = opened.gather(place, array[0].nbytes, offset=file.offset)
                assert np.asarray(records).tobytes() == array[indices].tobytes()
        for dtype in dtypes:
            wrong = [100, 127] if dtype.startswith("u") else [100, -101, 127, -128]
            for index in wrong:
                place = make(np.array([0, 1, index, 2], dtype))
                found = file[place]
                assert isinstance(found, gpufs.DeviceArray)
                with pytest.raises(IndexError, match=str(index)):
                    found.numpy()
                file[place]
                with pytest.raises(IndexError, match=str(index)):
                    file.file.wait()
                assert same(file[3], array[3])  # an error is told once
        with pytest.raises(IndexError, match="integers"):
            file[make(np.ones(100, np.float32))]
        with pytest.raises(IndexError, match="integers"):
            file[make(np.ones(100, bool))]
        with pytest.raises(IndexError, match="cannot be combined"):
            file[make(np.zeros(2, int)), [0, 1]]


def test_index_arrays_of_pytorch(gpu: gpufs.Mount, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    check_index_arrays(
        gpu, tmp_path, lambda array: torch.from_numpy(array).cuda(), [*SIGNED, "uint8"]
    )


def test_index_arrays_of_cupy(gpu: gpufs.Mount, tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    check_index_arrays(gpu, tmp_path, cupy.asarray, [*SIGNED, *UNSIGNED])


def test_index_arrays_that_were_read(gpu: gpufs.Mount, tmp_path: Path) -> None:
    array = filled((100, 50), "<f4")
    indices = np.random.default_rng(3).integers(-100, 100, 1000)
    np.save(tmp_path / "indices.npy", indices)
    with saved(gpu, tmp_path, array) as file, gpu.array(tmp_path / "indices.npy") as places:
        assert same(file[places[:]], array[indices])


def test_index_arrays_are_waited_for(gpu: gpufs.Mount, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    array = filled((1000, 50), "<f4")
    with saved(gpu, tmp_path, array) as file:
        for _ in range(20):
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                torch.cuda._sleep(10_000_000)
                places = torch.arange(1000, device="cuda").flip(0)
                found = file[places]
            assert same(found, array[::-1])


# ---- Streams


def test_work_on_side_streams_is_in_their_order(gpu: gpufs.Mount, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    array = filled((1000, 1000), "<i4")
    with saved(gpu, tmp_path, array) as file:
        for number in range(20):
            side, other = torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(side):
                tensor = torch.from_dlpack(file[number:])
                assert tensor.sum(dtype=torch.int64).item() == array[number:].sum(dtype=np.int64)
            found = file.read(slice(number), stream=side)
            with torch.cuda.stream(other):  # taken elsewhere than asked for
                total = torch.from_dlpack(found).sum(dtype=torch.int64)
                del found
                assert total.item() == array[:number].sum(dtype=np.int64)
        for stream in (None, 0, side.cuda_stream, side):
            assert same(file.read(5, stream=stream), array[5])
        for stream in ("side", -1, 1.5):
            with pytest.raises((TypeError, ValueError), match="stream"):
                file.read(5, stream=stream)


def test_arrays_of_pytorch_are_filled(gpu: gpufs.Mount, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    array = filled((100, 50), "<f4")
    with saved(gpu, tmp_path, array) as file, gpu.open(tmp_path / "array.npy") as opened:
        out = torch.empty((10, 50), dtype=torch.float32, device="cuda")
        assert file.read(slice(20, 30), out=out) is out
        assert same(out.cpu().numpy(), array[20:30])
        assert file.take(torch.arange(10, device="cuda"), out=out) is out
        assert same(out.cpu().numpy(), array[:10])
        assert opened.readinto(out, file.offset) == 2000
        assert same(out.cpu().numpy(), array[:10])
        for wrong, error in (
            (out.T, ValueError),
            (out[:5], ValueError),
            (out.cpu(), TypeError),
            (np.zeros((10, 50), "<f4"), TypeError),
        ):
            with pytest.raises(error):
                file.read(slice(10), out=wrong)


def test_pinned_memory_may_be_changed_when_a_write_returns(
    gpu: gpufs.Mount, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    pinned = torch.zeros(1000, dtype=torch.uint8).pin_memory()
    with gpu.open(tmp_path / "file", "w+b") as file:
        torch.cuda._sleep(50_000_000)  # the stream is busy
        file.write(pinned.numpy())
        pinned.fill_(7)
        file.fsync()
    assert (tmp_path / "file").read_bytes() == bytes(1000)


def test_tensors_are_described_as_by_their_interface() -> None:
    torch = pytest.importorskip("torch")
    for name in ("bool", "uint8", "int16", "int64", "float16", "float32", "complex64"):
        tensor = torch.zeros((6, 4), dtype=getattr(torch, name), device="cuda")
        for part in (tensor, tensor.T, tensor[:, :2], tensor[:1], tensor[2, 3], tensor[:0]):
            found = device_array(part)
            facts = part.__cuda_array_interface__
            assert (found.shape, found.nbytes) == (
                facts["shape"],
                part.numel() * part.element_size(),
            )
            assert (found.kind, found.itemsize) == (facts["typestr"][1], int(facts["typestr"][2:]))
            assert found.is_contiguous == part.is_contiguous()
            assert found.address == facts["data"][0] or part.numel() == 0
    half = device_array(torch.zeros(3, dtype=torch.bfloat16, device="cuda"))
    assert (half.kind, half.itemsize) == ("V", 2)
    for other in (tensor.conj(), tensor.to_sparse()):
        with pytest.raises(TypeError, match="not taken"):
            device_array(other)
    weight = torch.zeros(4, device="cuda", requires_grad=True)
    assert device_array(weight).read_only
    with torch.no_grad():
        assert not device_array(weight).read_only


def test_arrays_of_pytorch_are_written(gpu: gpufs.Mount, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "new"
    with gpu.open(path, "w+") as opened:
        tensor = torch.arange(100_000, device="cuda", dtype=torch.int32)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(10_000_000)
            doubled = tensor * 2
            assert opened.write(doubled, 5) == 400_000
        opened.fsync()
        assert path.read_bytes() == bytes(5) + (np.arange(100_000, dtype=np.int32) * 2).tobytes()
        with pytest.raises(ValueError, match="C-contiguous"):
            opened.write(tensor.reshape(1000, 100).T)
        assert opened.write(tensor.to(torch.bfloat16)) == 200_000
        assert opened.write(tensor.cpu(), 500_000) == 400_000
    assert path.read_bytes()[500_000:] == np.arange(100_000, dtype=np.int32).tobytes()


# ---- Errors


def truncated(gpu: gpufs.Mount, folder: Path) -> gpufs.FileArray:
    """Uses a mount without direct loads, which may read stale bytes of a registered file."""
    file = gpu.array(npy(folder / "array.npy", filled((2000, 1000), "<i4")))
    os.truncate(folder / "array.npy", 5000)
    return file


@pytest.mark.parametrize(
    "wait",
    [
        lambda file, found: found.numpy(),
        lambda file, found: file.file.wait(),
        lambda file, found: file.file.stat(),
        lambda file, found: file.close(),
    ],
    ids=["numpy", "wait", "stat", "close"],
)
@pytest.mark.parametrize("page", [4096, 65536])
def test_errors_come_with_the_next_call_that_waits(
    tmp_path: Path, page: int, wait: Callable[[gpufs.FileArray, Any], object]
) -> None:
    with gpufs.mount(device="cuda", cache="16MiB", page=page, pinned=0) as gpu:
        file = truncated(gpu, tmp_path)
        found = file[1500]
        with pytest.raises(OSError, match="data") as caught:
            wait(file, found)
        assert (caught.value.errno, caught.value.filename) == (
            errno.ENODATA,
            str(tmp_path / "array.npy"),
        )
        file.close()


@pytest.mark.parametrize("error", [OSError, IndexError])
def test_unmounting_raises_what_nobody_waited_for(tmp_path: Path, error: type[Exception]) -> None:
    gpu = gpufs.mount(device="cuda", cache="16MiB", pinned=0)
    np.save(tmp_path / "indices.npy", [5000])
    places = gpu.array(tmp_path / "indices.npy")
    file = truncated(gpu, tmp_path)
    file[1500 if error is OSError else places[:]]
    with pytest.raises(error):
        gpu.close()
    assert gpu.closed
    assert file.file.closed
    gpu.close()


def test_too_little_memory_is_an_error(gpu: gpufs.Mount, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with gpu.array(path, "u1") as file:
        for use in (lambda: file[...], file.file.read):
            with pytest.raises((OSError, MemoryError)) as caught:
                use()
            assert isinstance(caught.value, MemoryError) or caught.value.errno == errno.ENOMEM
        assert same(file[1 << 39 : (1 << 39) + 10], np.zeros(10, np.uint8))


def test_results_outlive_their_mount(tmp_path: Path) -> None:
    array = filled((100, 50), "<f4")
    with gpufs.mount(device="cuda", cache="16MiB") as gpu:
        found = gpu.array(npy(tmp_path / "array.npy", array))[3:]
    assert same(found, array[3:])


def test_copies_to_the_host_do_not_keep_reads_from_ending(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for options in MOUNTS:
        with gpufs.mount(**({"device": "cuda", "cache": "64MiB"} | options)) as gpu:
            for number in range(10):
                array = filled((500, 1000 + number), "<f4")  # a file that was never read
                with gpu.array(npy(tmp_path / f"{number}.npy", array)) as file:
                    key = ([5, -1, 3], slice(None), slice(None, None, 2), ...)[number % 4]
                    assert same(torch.from_dlpack(file[key]).cpu().numpy(), np.asarray(array[key]))
