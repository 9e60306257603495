"""Layouts of arrays in safetensors files: damaged files raise ValueError."""

from __future__ import annotations

import io
import json
import struct
from typing import BinaryIO, cast

import ml_dtypes
import numpy as np
import pytest
from gpufs._formats import read_safetensors, safetensors_names
from gpufs._layouts import ArrayLayout
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from .layout_rules import OnlyHeader, check_inside, items


def safetensors(header: object, content: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def layouts_of_safetensors(content: bytes) -> dict[str, ArrayLayout]:
    return safetensors_names(cast(BinaryIO, io.BytesIO(content)), len(content))


TENSORS = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(TENSORS)), npst.array_shapes(min_dims=0, min_side=0, max_side=4)
        )
    ),
    st.booleans(),
)
def test_tensors_are_found(tensors: list[tuple[str, tuple[int, ...]]], with_metadata: bool) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}} if with_metadata else {}
    body = b""
    for number, (dtype, shape) in enumerate(tensors):
        array = np.full(shape, number, np.uint8).astype(TENSORS[dtype])
        header[f"t.{number}"] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(body), len(body) + array.nbytes],
        }
        body += array.tobytes()
    content = safetensors(header, body)
    only_header = cast(BinaryIO, OnlyHeader(content, len(content) - len(body)))
    found = safetensors_names(only_header, len(content))
    assert list(found) == [f"t.{number}" for number in range(len(tensors))]
    for number, (dtype, shape) in enumerate(tensors):
        layout = read_safetensors(only_header, len(content), f"t.{number}")
        assert layout == found[f"t.{number}"]
        assert (layout.dtype, layout.shape) == (np.dtype(TENSORS[dtype]), shape)
        check_inside(layout, len(content))
        assert (
            items(content, layout).tobytes()
            == np.full(shape, number, np.uint8).astype(TENSORS[dtype]).tobytes()
        )


def tensor(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}


def test_unknown_names_are_answered_with_close_ones() -> None:
    content = safetensors(
        {"layers.0.weight": tensor(), "layers.1.weight": tensor(), "head": tensor()}, bytes(24)
    )
    file = io.BytesIO(content)
    with pytest.raises(
        KeyError, match=r"'layer.0.weight'.*; close: 'layers.0.weight', 'layers.1.weight'"
    ):
        read_safetensors(file, len(content), "layer.0.weight")
    with pytest.raises(KeyError, match=r"no array 'zzz' in the file, which has 3: 'layers"):
        read_safetensors(file, len(content), "zzz")
    with pytest.raises(KeyError):
        read_safetensors(file, len(content), "__metadata__")


def test_tensors_of_other_types_do_not_hide_the_others() -> None:
    header = {"scale": tensor(dtype="F8_E8M0", data_offsets=[0, 6]), "weight": tensor()}
    content = safetensors(header, bytes(24))
    assert list(layouts_of_safetensors(content)) == ["weight"]
    with pytest.raises(ValueError, match="items of 'scale' are 'F8_E8M0', which is not supported"):
        read_safetensors(io.BytesIO(content), len(content), "scale")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"a": tensor(shape=[2, 4])}, "span 24 bytes; shape .* of F32 has 32"),
        ({"a": tensor(dtype="F64")}, "span 24 bytes"),
        ({"a": tensor(shape=[2, 2])}, "span 24 bytes; shape .* of F32 has 16"),
        ({"a": tensor(data_offsets=[1, 25])}, "truncated: .* bytes, array 'a' asks for"),
        (
            {"a": tensor(dtype="F4", data_offsets=[1, 25])},
            "truncated: .* bytes, array 'a' asks for",
        ),
        ({"a": tensor(data_offsets=[2**63, 2**63 + 24])}, "truncated"),
        ({"a": tensor(data_offsets=[-24, 0])}, "negative"),
        ({"a": tensor(data_offsets=[24, 0])}, "must not fall"),
        ({"a": tensor(data_offsets=[0])}, "two integers"),
        ({"a": tensor(data_offsets=[0.0, 24.0])}, "two integers"),
        ({"a": tensor(data_offsets=[False, 24])}, "two integers"),
        ({"a": tensor(data_offsets="ab")}, "two integers"),
        ({"a": tensor(shape=[-2, -3])}, "none negative"),
        ({"a": tensor(shape=[2.0, 3])}, "integers"),
        ({"a": tensor(shape=[True, 6])}, "integers"),
        ({"a": tensor(shape=6)}, "list"),
        ({"a": tensor(shape=[2**64, 0], data_offsets=[0, 0])}, r"2\*\*48"),
        ({"a": tensor(shape=[2**47, 2**47, 0], data_offsets=[0, 0])}, r"2\*\*48"),
        ({"a": tensor(shape=[1] * 65, data_offsets=[0, 4])}, "65 dimensions"),
        ({"a": tensor(dtype=1)}, "dtype of 'a' must be text"),
        ({"a": tensor(extra=1)}, "must have dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": []}}, "must have dtype, shape and data_offsets"),
        ({"a": []}, "must have"),
        ({"__metadata__": {"a": 1}}, "text to text"),
        ({"__metadata__": []}, "text to text"),
        (b"", "does not begin with {"),
        (b" {}", "does not begin with {"),
        (b"[]", "does not begin with {"),
        (b"{", "damaged"),
        (b"{}x", "damaged"),
        (b'{"a": 1, "a": 1}', "a name occurs twice"),
        (b'{"a": {"shape": [], "shape": []}}', "a name occurs twice"),
        (b'{"\xff": 1}', "damaged"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"a":' + b"[" * 50_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "damaged"),
    ],
)
def test_safetensors_headers_that_cannot_be_are_refused(header: object, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        layouts_of_safetensors(safetensors(header, bytes(24)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_truncated_safetensors_files_are_refused(data: st.DataObject) -> None:
    content = safetensors({"a": tensor()}, bytes(24))
    with pytest.raises(ValueError, match="truncated"):
        layouts_of_safetensors(content[: data.draw(st.integers(0, len(content) - 1))])


def test_safetensors_headers_have_a_bound() -> None:
    with pytest.raises(ValueError, match="a header of 100000001 bytes"):
        safetensors_names(io.BytesIO(struct.pack("<Q", 100_000_001)), 2**40)
    with pytest.raises(ValueError, match="truncated"):
        safetensors_names(io.BytesIO(struct.pack("<Q", 100_000_000)), 2**20)


@settings(deadline=None, max_examples=150)
@given(
    st.one_of(
        st.binary(max_size=60).map(safetensors),
        st.binary(max_size=60).map(lambda garbage: safetensors(b"{" + garbage)),
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), inner)
                | st.builds(
                    lambda shape, offsets: tensor(shape=shape, data_offsets=offsets), inner, inner
                )
            ),
        ).map(lambda value: safetensors({"a": value}, bytes(24))),
        st.builds(
            lambda shape, offsets: safetensors(
                {"a": tensor(dtype="U8", shape=shape, data_offsets=offsets)}, bytes(24)
            ),
            st.lists(st.integers(-1, 4), max_size=3),
            st.lists(st.integers(-1, 30), min_size=2, max_size=2),
        ),
    )
)
def test_garbage_gives_value_error_or_tensors_inside_the_file(content: bytes) -> None:
    try:
        found = layouts_of_safetensors(content)
    except ValueError:
        return
    for layout in found.values():
        check_inside(layout, len(content))
