"""What other libraries say of their arrays and streams is understood; no GPU is asked."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpufs import _device
from gpufs._device import ForeignArray, device_array, is_on_device
from gpufs._streams import chosen_stream


class WithInterface:
    """Has the CUDA Array Interface."""

    def __init__(self, **facts: object) -> None:
        self.facts = {
            "version": 3,
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (4096, False),
        } | facts

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return self.facts


class WithDlpack:
    """Has DLPack, and says that it is where it is not."""

    def __init__(self, array: Any, device: int = 2) -> None:
        self.array = array
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **arguments: Any) -> object:
        return self.array.__dlpack__()


class LikeATensor(WithDlpack):
    """As PyTorch: the interface is there, and cannot name all types."""

    def __init__(self, array: Any, error: Exception, is_cuda: bool = True) -> None:
        super().__init__(array, 2 if is_cuda else 1)
        self.error = error
        self.is_cuda = is_cuda

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        raise self.error


def test_what_is_in_memory_of_a_gpu_is_known() -> None:
    array = np.zeros(3)
    for found in (
        WithInterface(),
        WithDlpack(array),
        WithDlpack(array, 13),
        LikeATensor(array, KeyError()),
    ):
        assert is_on_device(found)
    for other in (
        array,
        [1],
        5,
        None,
        "x",
        WithDlpack(array, 1),
        LikeATensor(array, AttributeError(), False),
    ):
        assert not is_on_device(other)
        with pytest.raises(TypeError, match="not an array in GPU memory"):
            device_array(other)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ForeignArray(4096, (2, 3), True, 4, "float32", None, False)),
        ({"strides": None, "stream": 7}, ForeignArray(4096, (2, 3), True, 4, "float32", 7, False)),
        ({"strides": (12, 4)}, ForeignArray(4096, (2, 3), True, 4, "float32", None, False)),
        ({"strides": (4, 8)}, ForeignArray(4096, (2, 3), False, 4, "float32", None, False)),
        (
            {"strides": (99, 4), "shape": (1, 3)},
            ForeignArray(4096, (1, 3), True, 4, "float32", None, False),
        ),
        (
            {"strides": (99, 4), "shape": (5, 0)},
            ForeignArray(4096, (5, 0), True, 4, "float32", None, False),
        ),
        (
            {"data": (None, True), "shape": (0,)},
            ForeignArray(0, (0,), True, 4, "float32", None, True),
        ),
        ({"typestr": "<c8"}, ForeignArray(4096, (2, 3), True, 8, "complex64", None, False)),
        ({"typestr": "|b1"}, ForeignArray(4096, (2, 3), True, 1, "bool", None, False)),
        ({"typestr": "|V2"}, ForeignArray(4096, (2, 3), True, 2, "void16", None, False)),
        ({"typestr": "<M8"}, ForeignArray(4096, (2, 3), True, 8, "<M8", None, False)),
        (
            {"typestr": "|V4", "descr": [("a", "<i4")]},
            ForeignArray(4096, (2, 3), True, 4, "[('a', '<i4')]", None, False),
        ),
        ({"typestr": "|u1", "shape": ()}, ForeignArray(4096, (), True, 1, "uint8", None, False)),
    ],
)
def test_interfaces_are_understood(facts: dict[str, object], expected: ForeignArray) -> None:
    assert device_array(WithInterface(**facts)) == expected


@pytest.mark.parametrize("facts", [{"typestr": ">i4"}, {"mask": object()}])
def test_what_kernels_would_misread_is_refused(facts: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="swapped bytes or a mask"):
        device_array(WithInterface(**facts))


def test_results_are_known_without_being_given_away() -> None:
    array, buffer = made(7, ml_dtypes.bfloat16)
    assert device_array(array) == ForeignArray(4096, (2, 3), True, 2, "bfloat16", 7, False)
    assert buffer.calls == []


@pytest.mark.parametrize(
    "error", [KeyError("torch.float8_e5m2"), TypeError("type"), RuntimeError("requires grad")]
)
def test_dlpack_is_asked_where_the_interface_fails(error: Exception) -> None:
    array = np.arange(6, dtype="<i2").reshape(2, 3)
    for content, is_contiguous in (
        (array, True),
        (array.T, False),
        (array[:, :1], False),
        (array[:1], True),
    ):
        found = device_array(LikeATensor(content, error))
        assert found == ForeignArray(
            content.ctypes.data, content.shape, is_contiguous, 2, "int16", None, False
        )
        assert found.nbytes == content.nbytes


@pytest.mark.parametrize(
    ("dtype", "kind"), [("i1", "i"), ("<u8", "u"), ("<f2", "f"), ("<c8", "c"), ("?", "b")]
)
def test_kinds_of_dlpack_are_numpys(dtype: str, kind: str) -> None:
    found = device_array(WithDlpack(np.zeros(3, dtype)))
    assert (found.kind, found.itemsize) == (kind, np.dtype(dtype).itemsize)
    assert found.dtype == np.dtype(dtype).name


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (1, 0),  # two names of the legacy default stream
        (2**40, 2**40),
        (np.uint64(2**40), 2**40),
        (types.SimpleNamespace(cuda_stream=5), 5),  # PyTorch
        (types.SimpleNamespace(ptr=6), 6),  # CuPy
        (types.SimpleNamespace(handle=ctypes.c_void_p(7)), 7),  # Numba
        (types.SimpleNamespace(handle=ctypes.c_void_p(0)), 0),
        (type("Stream", (), {"__cuda_stream__": lambda self: (0, 8)})(), 8),
    ],
)
def test_streams_have_handles(stream: object, handle: int) -> None:
    assert chosen_stream(stream, 0) == (handle, stream)


@pytest.mark.parametrize(
    ("stream", "error"),
    [(-1, ValueError), (2, ValueError), ("s", TypeError), (1.5, TypeError), ([], TypeError)],
)
def test_what_is_no_stream_is_refused(stream: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="stream"):
        chosen_stream(stream, 0)


def test_the_current_stream_is_pytorchs_or_cupys(monkeypatch: pytest.MonkeyPatch) -> None:
    uses_gpu = False
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(
            is_initialized=lambda: uses_gpu,
            current_stream=lambda ordinal: types.SimpleNamespace(cuda_stream=50 + ordinal),
        )
    )
    cupy = types.SimpleNamespace(
        cuda=types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=60))
    )
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert chosen_stream(None, 0) == (0, None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    assert chosen_stream(None, 1).handle == 60
    uses_gpu = True
    assert chosen_stream(None, 1).handle == 51
    torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 70 + ordinal)
    assert chosen_stream(None, 1) == (71, None)


class FakeBuffer:
    """Memory that is given away."""

    address = 4096

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.calls: list[object] = []

    def note_use_elsewhere(self) -> None:
        self.calls.append("elsewhere")

    def hold_back(self, stream: int) -> None:
        self.calls.append(stream)

    def dlpack(self, *arguments: object) -> object:
        return arguments


def made(stream: int, dtype: Any = "<f4") -> tuple[_device.DeviceArray, FakeBuffer]:
    buffer = FakeBuffer(stream)
    file: Any = types.SimpleNamespace(ordinal=1, failures=lambda: 0)
    # type: ignore[arg-type]
    return _device.DeviceArray(buffer, (2, 3), np.dtype(dtype), file, None, 0), buffer


@pytest.mark.parametrize(
    ("own", "stream", "calls"),
    [
        (0, None, []),
        (0, 1, []),
        (0, 7, [7, "elsewhere"]),
        (7, 7, []),
        (7, None, [0, "elsewhere"]),
        (7, 1, [0, "elsewhere"]),
        (7, -1, ["elsewhere"]),  # the taker sees to the order
    ],
)
def test_who_takes_an_array_to_another_stream_waits(
    own: int, stream: int | None, calls: list[object]
) -> None:
    array, buffer = made(own)
    assert array.__dlpack__(stream=stream) == (array, [2, 3], 2, 32, 2, 1)
    assert buffer.calls == calls


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [
        ("?", 6, 8),
        ("<u2", 1, 16),
        ("<i8", 0, 64),
        ("<c16", 5, 128),
        (ml_dtypes.bfloat16, 4, 16),
        (ml_dtypes.float8_e4m3fn, 10, 8),
        (ml_dtypes.float8_e5m2, 12, 8),
    ],
)
def test_types_have_codes_of_dlpack(dtype: Any, code: int, bits: int) -> None:
    array, _ = made(0, dtype)
    assert array.__dlpack__()[2:4] == (code, bits)  # type: ignore[index]
    assert hasattr(array, "__cuda_array_interface__") == (code not in (4, 10, 12))


def test_the_interface_of_a_result_has_its_stream() -> None:
    for own, told in ((0, 1), (7, 7)):
        array, buffer = made(own)
        facts = array.__cuda_array_interface__
        seen = device_array(WithInterface(**facts))
        assert (facts["stream"], seen) == (
            told,
            ForeignArray(4096, (2, 3), True, 4, "float32", own, False),
        )
        assert facts["version"] == 3
        assert "elsewhere" in buffer.calls
