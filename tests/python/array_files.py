"""Files that hold arrays, and the same arrays in memory."""

from __future__ import annotations

import json
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpufs
import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from .index_keys import Array, lengths

SAFETENSORS_NAMES = {
    "?": "BOOL",
    "u1": "U8",
    "i1": "I8",
    "<u2": "U16",
    "<i2": "I16",
    "<u4": "U32",
    "<i4": "I32",
    "<u8": "U64",
    "<i8": "I64",
    "<f2": "F16",
    "<f4": "F32",
    "<f8": "F64",
    "<c8": "C64",
}
EXTENSIONS = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
TENSOR_TYPES = {np.dtype(name): text for name, text in SAFETENSORS_NAMES.items()} | {
    np.dtype(kind): text for text, kind in EXTENSIONS.items()
}
EXTENSION_DTYPES = [np.dtype(kind) for kind in EXTENSIONS.values()]
DTYPES = [*TENSOR_TYPES, np.dtype("<c16")]


def filled(shape: tuple[int, ...], dtype: Any, order: Any = "C") -> Array:
    """Distinct bytes, as far as they go; bools are 0 and 1."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.random.default_rng(count).integers(
        0, 2 if kind.kind == "b" else 256, count * kind.itemsize, np.uint8
    )
    return raw.view(kind).reshape(shape, order=order)


def npy(path: Path, array: Array, version: tuple[int, int] | None = None) -> Path:
    with path.open("wb") as file, warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # NumPy says of 2.0 and 3.0 that they are newer than need be
        np.lib.format.write_array(file, array, version)
    return path


def safetensors(path: Path, tensors: dict[str, Array], padding: int = 0) -> Path:
    header: dict[str, object] = {"__metadata__": {"padding": " " * padding}}
    content = b""
    for name, array in tensors.items():
        data = array.tobytes()
        header[name] = {
            "dtype": TENSOR_TYPES[array.dtype],
            "shape": array.shape,
            "data_offsets": [len(content), len(content) + len(data)],
        }
        content += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


@dataclass(frozen=True, eq=False)
class Case:
    """An array, and the same in a file."""

    array: Array
    file: gpufs.FileArray


@st.composite
def cases(draw: st.DrawFn, mount: gpufs.Mount, folder: Path) -> Case:
    shape = tuple(draw(st.lists(lengths(6), max_size=4)))
    form = draw(st.sampled_from(["npy", "npy", "raw", "safetensors"]))
    dtype = draw(st.sampled_from(DTYPES))
    order = draw(st.sampled_from("CF")) if form == "npy" else "C"
    if form == "npy" and dtype in EXTENSION_DTYPES:
        form, order = "raw", "C"  # NumPy does not save these
    if form == "safetensors" and dtype not in TENSOR_TYPES:
        dtype = np.dtype("<f4")
    array = filled(shape, dtype, order)
    path = folder / "array"
    if form == "npy":
        version = draw(st.sampled_from([None, (1, 0), (2, 0), (3, 0)]))
        return Case(array, mount.array(npy(path, array, version)))
    if form == "safetensors":
        other = filled((draw(st.integers(0, 5)),), "u1")  # so that items lie at odd offsets too
        return Case(
            array, mount.array(safetensors(path, {"other": other, "this": array}), name="this")
        )
    offset = draw(st.sampled_from([0, 1, 3, 64, 4095]))
    rest = draw(st.integers(0, 3))
    path.write_bytes(bytes(offset) + array.tobytes() + bytes(rest))
    return Case(array, mount.array(path, draw(st.sampled_from([dtype, dtype.name])), shape, offset))


def same(found: object, expected: Array) -> bool:
    """Compares what a read gave, on the CPU device or on a GPU, with what NumPy gave."""
    array = found.numpy() if isinstance(found, gpufs.DeviceArray) else found
    assert isinstance(array, np.ndarray)
    return (array.shape, array.dtype, array.tobytes()) == (
        expected.shape,
        expected.dtype,
        expected.tobytes(),
    )
