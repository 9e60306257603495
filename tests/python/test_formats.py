"""Layouts of arrays in NumPy's and raw files: damaged files raise ValueError."""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any, BinaryIO, cast

import ml_dtypes
import numpy as np
import pytest
from gpufs._formats import read_npy
from gpufs._layouts import ArrayLayout, parse_dtype, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from .layout_rules import Array, OnlyHeader, check_inside, items

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EXTENSIONS = [BFLOAT16, np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
NUMPY_DTYPES = [np.dtype(name) for name in ("?", *"bhilBHILefdFD")]


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # NumPy says of 2.0 and 3.0 that they are newer than need be
        np.lib.format.write_array(file, array, version)
    return file.getvalue()


def npy_with_header(
    header: str | bytes, content: bytes = b"", version: tuple[int, int] = (1, 0)
) -> bytes:
    text = (
        header
        if isinstance(header, bytes)
        else header.encode("utf-8" if version == (3, 0) else "latin1")
    )
    return (
        b"\x93NUMPY"
        + bytes(version)
        + struct.pack("<H" if version == (1, 0) else "<I", len(text))
        + text
        + content
    )


def layout_of_npy(content: bytes) -> ArrayLayout:
    return read_npy(cast(BinaryIO, io.BytesIO(content)), len(content))


@settings(deadline=None, max_examples=150)
@given(
    npst.arrays(
        st.sampled_from(NUMPY_DTYPES),
        npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    st.sampled_from("CF"),
    st.sampled_from([None, (1, 0), (2, 0), (3, 0)]),
    st.binary(max_size=3),
)
def test_arrays_that_numpy_saved_are_found(
    array: Array, order: Any, version: tuple[int, int] | None, rest: bytes
) -> None:
    content = npy(array.copy(order=order), version)
    header_bytes = len(content) - array.nbytes
    layout = read_npy(
        cast(BinaryIO, OnlyHeader(content + rest, header_bytes)), len(content) + len(rest)
    )
    assert layout.dtype == array.dtype
    assert layout.dtype.isnative
    assert layout.shape == array.shape
    assert layout.nbytes == array.nbytes
    assert layout.offset == header_bytes
    check_inside(layout, len(content))
    assert items(content, layout).tobytes() == array.tobytes()
    if array.size > 0 and array.ndim > 1:
        assert items(content, layout).flags.f_contiguous or order == "C"


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_of_the_items_is_in_the_strides(order: Any) -> None:
    layout = layout_of_npy(npy(np.zeros((2, 3, 4), "<f4", order=order)))
    assert layout.strides == ((48, 16, 4) if order == "C" else (4, 8, 24))
    assert (layout.nbytes, layout.itemsize) == (96, 4)


def test_the_file_may_have_been_read_before() -> None:
    file = io.BytesIO(npy(np.zeros(3)))
    file.seek(50)
    assert read_npy(file, len(file.getvalue())).shape == (3,)


def test_long_integers_of_python_2_are_understood() -> None:
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2L, 1L), }"
    assert layout_of_npy(npy_with_header(header, bytes(8))).shape == (2, 1)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.data())
def test_truncated_npy_files_are_refused(version: tuple[int, int], data: st.DataObject) -> None:
    content = npy(np.arange(6.0), version)
    end = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ValueError, match="truncated"):
        layout_of_npy(content[:end])
    with pytest.raises(
        ValueError, match="truncated"
    ):  # the file became shorter since its size was asked
        read_npy(io.BytesIO(content[: min(end, len(content) - 6 * 8 - 1)]), len(content))


def test_truncated_files_say_what_is_missing() -> None:
    content = npy(np.arange(6.0))
    with pytest.raises(
        ValueError,
        match=rf"^truncated: 170 bytes, an array of shape \(6,\) asks for {len(content)}$",
    ):
        layout_of_npy(content[:170])


GOOD = {"descr": "'<f4'", "fortran_order": "False", "shape": "(2,)"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"descr": "'|O'"}, "Python objects"),
        ({"descr": "[('a', '<f4'), ('b', '<i4')]"}, "structured items"),
        ({"descr": "'>f4'"}, "big-endian items, '>f4', which kernels would have to swap"),
        ({"descr": "'>c16'"}, "big-endian"),
        ({"descr": "'<V2'"}, "does not say what its items .* mean"),
        ({"descr": "'<f1'"}, "does not say what its items .* mean"),
        ({"descr": "'<U4'"}, "type '<U4', which are not supported"),
        ({"descr": "'<M8'"}, "not supported"),
        ({"descr": "'<f16'"}, "not supported"),
        ({"descr": "'<i3'"}, "not supported"),
        ({"descr": "'<b2'"}, "not supported"),
        ({"descr": "'<f4,<f4'"}, "is no type"),
        ({"descr": "'float32'"}, "is no type"),
        ({"descr": "4"}, "is no type that arrays here have: 4"),
        ({"descr": "('<f4', (2,))"}, "is no type"),
        ({"fortran_order": "1"}, "fortran_order .* True or False: 1"),
        ({"fortran_order": "None"}, "fortran_order"),
        ({"shape": "[2]"}, "shape .* tuple of integers"),
        ({"shape": "2"}, "shape"),
        ({"shape": "(2.0,)"}, "shape"),
        ({"shape": "(True,)"}, "shape"),
        ({"shape": "(-1,)"}, "negative"),
        ({"shape": "(-1, -2)"}, "negative"),
        ({"shape": "(0, -1)"}, "negative"),
        ({"shape": f"({2**46},)"}, r"2\*\*48 bytes or more"),
        ({"shape": f"({2**64}, 0)"}, r"2\*\*48 bytes or more"),
        ({"shape": f"({2**24}, {2**24}, 0)"}, r"2\*\*48 bytes or more"),
        ({"shape": f"(0x{'f' * 8000},)"}, r"2\*\*48 bytes or more"),
        ({"shape": f"({2**46 - 1},)"}, "truncated"),
        ({"shape": "(" + "1," * 65 + ")"}, "65 dimensions"),
        ({"shape": "(3,)"}, "truncated"),
        ({"extra": "1"}, "must have descr, fortran_order and shape"),
        ({"shape": None}, "must have descr, fortran_order and shape"),
    ],
)
def test_headers_that_cannot_be_are_refused(changes: dict[str, str | None], text: str) -> None:
    fields = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    header = "{" + ", ".join(f"'{key}': {value}" for key, value in fields.items()) + "}\n"
    with pytest.raises(ValueError, match=text) as caught:
        layout_of_npy(npy_with_header(header, bytes(8)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        "[]",
        "None",
        "{1, 2}",
        "{[]: 1}",
        "__import__('os').abort()",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1+1,)}",
        "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (1,)}",
        "-" * 9000 + "1",
        "(" * 9000,
        "[" * 9000,
        "~" * 9000 + "1",
        "+".join(["1"] * 4000),
        "f()" + "()" * 4000,
        "9" * 9000,
        "\0",
        "é" * 100,
    ],
)
@pytest.mark.parametrize("version", [(1, 0), (3, 0)])
def test_damaged_headers_are_refused(header: str, version: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="header") as caught:
        layout_of_npy(npy_with_header(header, bytes(8), version))
    assert "\n" not in str(caught.value)


def test_headers_have_a_bound() -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': ()}".ljust(10_000)
    assert layout_of_npy(npy_with_header(header, bytes(4))).shape == ()
    with pytest.raises(ValueError, match="has 10001 bytes; at most 10000"):
        layout_of_npy(npy_with_header(header + " ", bytes(4)))
    with pytest.raises(ValueError, match="at most 10000"):
        layout_of_npy(b"\x93NUMPY\2\0\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"\x93NUMPY\4\0", "version 4.0"),
        (b"\x93NUMPY\1\1", "version 1.1"),
        (b"PK\3\4....", "not an .npy file"),
    ],
)
def test_other_files_are_refused(start: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        layout_of_npy(start + bytes(100))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=80), st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.booleans(), st.data())
def test_garbage_gives_value_error_or_an_array_inside_the_file(
    garbage: bytes, version: tuple[int, int], damaged: bool, data: st.DataObject
) -> None:
    content = npy_with_header(garbage, b"", version)
    if damaged:
        good = bytearray(npy(np.arange(6.0).reshape(2, 3), version))
        for _ in range(data.draw(st.integers(1, 3))):
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        content = bytes(good)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's parser warns of literals such as 0and
        try:
            layout = layout_of_npy(content)
        except ValueError:
            return
    check_inside(layout, len(content))


@pytest.mark.parametrize(
    ("shape", "offset", "size", "expected"),
    [
        (None, 0, 24, (6,)),
        (None, 2, 26, (6,)),
        (None, 3, 23, (5,)),
        (None, 26, 26, (0,)),
        (None, 0, 0, (0,)),
        (5, 0, 26, (5,)),
        (-1, 0, 24, (6,)),
        ((2, 3), 0, 26, (2, 3)),
        ([2, 3], 2, 26, (2, 3)),
        ((2, -1), 0, 24, (2, 3)),
        ((-1, 4), 8, 24, (1, 4)),
        ((-1, 7), 24, 24, (0, 7)),
        ((), 0, 4, ()),
        ((0, 3), 0, 0, (0, 3)),
        (np.int64(5), np.int64(0), 26, (5,)),
    ],
)
def test_raw_files_are_arrays(
    shape: Any, offset: int, size: int, expected: tuple[int, ...]
) -> None:
    layout = plain("float32", shape, offset, size)
    assert (layout.dtype, layout.shape, layout.offset) == (np.dtype("<f4"), expected, offset)
    check_inside(layout, size)


def test_raw_files_are_in_c_order() -> None:
    assert plain("bfloat16", (2, 3, 4), 6, 100) == ArrayLayout(BFLOAT16, (2, 3, 4), (24, 8, 2), 6)


@pytest.mark.parametrize(
    ("shape", "offset", "text"),
    [
        (None, 0, "26 bytes are no whole number of 4"),
        ((-1, 4), 2, "24 bytes are no whole number of 16"),
        (7, 0, r"^truncated: 26 bytes, an array of shape \(7,\) asks for 28$"),
        ((2, 3), 3, "truncated"),
        (None, 27, "offset"),
        (None, -1, "offset"),
        ((-1, -1), 0, "only one dimension can be -1"),
        ((-1, 0), 0, "does not tell what -1 means"),
        ((-2,), 0, "negative"),
        ((-1, -2), 0, "negative"),
        (2**46, 0, r"2\*\*48"),
        ((-1, 2**46), 0, r"2\*\*48"),
        ((1,) * 65, 0, "65 dimensions"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape: Any, offset: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        plain("float32", shape, offset, 26)


@pytest.mark.parametrize(("shape", "offset"), [(1.5, 0), ((1.5,), 0), ("12", 0), (None, 0.0)])
def test_shapes_and_offsets_are_integers(shape: Any, offset: Any) -> None:
    with pytest.raises(TypeError):
        plain("float32", shape, offset, 26)


class TorchDtype:
    """Shows itself as a type of PyTorch does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


@pytest.mark.parametrize("expected", [*NUMPY_DTYPES, *EXTENSIONS], ids=str)
def test_types_are_understood_however_written(expected: np.dtype[Any]) -> None:
    written: list[object] = [
        expected,
        expected.type,
        expected.name,
        TorchDtype(expected.name),
        f"torch.{expected.name}",
    ]
    if expected not in EXTENSIONS:
        written.append(expected.str)
    for dtype in written:
        parsed = parse_dtype(dtype)
        assert parsed == expected
        assert parsed.name == expected.name
        assert np.zeros(2, parsed).dtype == expected


def test_pythons_types_are_understood() -> None:
    assert [parse_dtype(kind).name for kind in (bool, int, float, complex)] == [
        "bool",
        "int64",
        "float64",
        "complex128",
    ]


@pytest.mark.parametrize(
    "dtype",
    [
        None,
        "",
        "O",
        object,
        "U4",
        "S4",
        "M8[s]",
        "m8",
        "V2",
        ">f4",
        np.dtype(">i8"),
        np.longdouble,
        np.clongdouble,
        [("a", "<f4")],
        "f4,f4",
        "f4,,",
        "(2,",
        "(2,)f4",
        "float12",
        "float8_e4m3",
        ml_dtypes.float8_e4m3b11fnuz,
        ml_dtypes.int4,
        TorchDtype("qint8"),
        TorchDtype("int4"),
        "torch.>f4",
        {},
        4,
        1.5,
    ],
    ids=repr,
)
def test_other_types_are_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match=r"kernels read|little-endian"):
        parse_dtype(dtype)


def test_importing_needs_no_numpy() -> None:
    import subprocess
    import sys

    program = "import sys; from gpufs import _formats, _selection; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
