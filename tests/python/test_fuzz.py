"""Parsers of bytes that others write, fed with a corpus (tests/fuzz/corpus) and what is made of it.

Whatever comes in, a parser gives what its contract says or its own kind of error, with one line,
and in time.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import struct
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpufs import _formats, bench, metrics, top
from gpufs._layouts import ArrayLayout
from gpufs.sizes import format_size, parse_size

from .work_budget import work_budget

CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"
STEP_INPUTS = 100
INPUT_TIME_MAX_S = 20.0  # generous, also for a busy machine; what it would catch takes minutes
LIKELY = [*b"\0\n\r \t\"'\\%()*+,-./0189:<=>[]{}_aeELT", 0x7F, 0x80, 0xC3, 0xFF]
TOKENS = [
    *(
        b"None",
        b"True",
        b"1e999",
        b"-1",
        b"18446744073709551616",
        b"0x10",
        b"[[",
        b"{}",
        b"}}",
        b"()",
        b",,",
        b"nan",
    ),
    *(
        b"shape",
        b"descr",
        b"dtype",
        b"data_offsets",
        b"__metadata__",
        b"F64",
        b"'<f4'",
        b"null",
        b'"a"',
        b"le",
    ),
]


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """Makes an input out of others."""
    data = bytearray(rng.choice(corpus))
    if rng.random() < 0.1:
        other = rng.choice(corpus)
        data[rng.randint(0, len(data)) :] = other[rng.randint(0, len(other)) :]
    for _ in range(rng.randint(0, 6)):
        at = rng.randint(0, len(data))
        size = rng.randint(0, 8)
        match rng.randrange(7):
            case 0:
                del data[at : at + size]
            case 1:
                data[at:at] = bytes([rng.choice(LIKELY)]) * (rng.choice([1, 1, 2, 300, 5000]))
            case 2:
                data[at:at] = data[rng.randint(0, len(data)) :][:size]
            case 3:
                data[at : at + size] = rng.choice(TOKENS)
            case 4:
                data[at:at] = rng.choice(TOKENS)
            case _ if at < len(data):
                data[at] = (
                    rng.choice(LIKELY) if rng.random() < 0.5 else data[at] ^ (1 << rng.randrange(8))
                )
    return bytes(data[:20_000])


def odd_value(rng: random.Random) -> Any:
    """A value that a file of JSON may have anywhere."""
    return rng.choice(
        [
            None,
            True,
            -1,
            0,
            1,
            2**63,
            -(2**70),
            10**400,
            0.5,
            1e308,
            float("nan"),
            "",
            "F32",
            [],
            {},
            [0],
            [[]],
        ]
    )


def changed(rng: random.Random, value: Any) -> Any:
    """Changes one place of a value of JSON, however deep."""
    if rng.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return odd_value(rng)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    made: Any = value.copy()
    match rng.randrange(8):
        case 0:
            del made[key]
        case 1 if isinstance(value, list):
            made.append(odd_value(rng))
        case 1:
            made[rng.choice(["a", "name", "dtype"])] = odd_value(rng)
        case _:
            made[key] = changed(rng, value[key])
    return made


def mutated_json(rng: random.Random, corpus: list[bytes]) -> bytes:
    """Makes an input out of another, whose first line is JSON, that is JSON again."""
    header, newline, rest = rng.choice(corpus).partition(b"\n")
    try:
        value = json.loads(header)
    except ValueError:
        return mutated(rng, corpus)
    for _ in range(rng.randint(1, 3)):
        value = changed(rng, value)
    with contextlib.suppress(ValueError):  # an integer of hundreds of digits is not written
        header = json.dumps(value).encode()
    return header + newline + rest


def check_inside(layout: ArrayLayout, size: int) -> None:
    assert layout.offset >= 0
    assert layout.offset + layout.nbytes <= size
    last = sum(
        (length - 1) * stride for length, stride in zip(layout.shape, layout.strides, strict=True)
    )
    assert layout.nbytes == 0 or last + layout.itemsize == layout.nbytes


def check_error(error: Exception) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 400


def check_npy(data: bytes) -> None:
    """As NumPy reads it, where both do."""
    content = b"\x93NUMPY" + data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's parser warns of literals such as 0and
        try:
            layout = _formats.read_npy(io.BytesIO(content), len(content))
        except ValueError as error:
            check_error(error)
            return
        check_inside(layout, len(content))
        try:
            wanted = np.load(io.BytesIO(content), allow_pickle=False)
        except Exception:  # NumPy raises what comes
            return
    got = np.ndarray(layout.shape, layout.dtype, content, layout.offset, layout.strides)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.tobytes() == wanted.tobytes()


def check_safetensors(data: bytes) -> None:
    """Line 1 is the header, the rest are the arrays' bytes. Tried with and without a length."""
    header, _, body = data.partition(b"\n")
    for content in (struct.pack("<Q", len(header)) + header + body, data):
        try:
            entries = _formats.read_safetensors_entries(io.BytesIO(content), len(content))
        except ValueError as error:
            check_error(error)
            continue
        for entry in entries.values():
            if isinstance(entry, ArrayLayout):
                check_inside(entry, len(content))
        try:
            _formats.find_tensor(entries, "weight")
        except (KeyError, ValueError) as error:
            assert not isinstance(error, UnicodeError)


def check_size(data: bytes) -> None:
    try:
        size = parse_size(data.decode("utf-8", errors="surrogateescape"))
    except ValueError:
        return
    assert 0 <= size < 2**63
    assert format_size(size)


def check_metrics(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    try:
        samples = metrics.parse(text)
    except ValueError as error:
        check_error(error)
        samples = []
    assert all(isinstance(sample.value, float) for sample in samples)
    try:
        top.read(text, "URL")
    except top.NotAnEndpointError as error:
        check_error(error)


def check_results(data: bytes, folder: Path) -> None:
    """What can be read can be compared, and shown."""
    path = folder / "results.json"
    path.write_bytes(data)
    try:
        results = bench.read(path)
    except bench.NotResultsError as error:
        check_error(error)
        return
    bench.compare(results, results)
    for table in results.benchmarks:
        bench.show(table)
    assert json.loads(results.to_json())


@dataclass(frozen=True)
class Target:
    """A parser, and how many steps of 100 inputs a run of all tests has for it."""

    name: str
    check: Callable[..., None]
    usual: int
    is_json: bool = False  # its first line
    needs_folder: bool = False


TARGETS = [
    Target("npy", check_npy, 15),
    Target("safetensors", check_safetensors, 15, is_json=True),
    Target("sizes", check_size, 15),
    Target("metrics", check_metrics, 15),
    Target("results", check_results, 3, is_json=True, needs_folder=True),
]
EACH = pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])


def corpus_of(target: Target) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target.name).iterdir())]


def check(target: Target, data: bytes, folder: Path) -> None:
    begin = time.monotonic()
    try:
        if target.needs_folder:
            target.check(data, folder)
        else:
            target.check(data)
    except BaseException:
        print(f"input: {data!r}")
        raise
    assert time.monotonic() - begin < INPUT_TIME_MAX_S


@EACH
def test_the_corpus_is_read(target: Target, tmp_path: Path) -> None:
    corpus = corpus_of(target)
    assert len(corpus) >= 3
    for data in corpus:
        check(target, data, tmp_path)


@EACH
@pytest.mark.timeout(0)  # soak says how long
def test_what_is_made_of_the_corpus_is_read_or_refused(target: Target, tmp_path: Path) -> None:
    corpus = corpus_of(target)
    name = (
        f"{Path(__file__).name}::test_what_is_made_of_the_corpus_is_read_or_refused[{target.name}]"
    )
    for seed in work_budget(f"tests/python/{name}", target.usual, "inputs", STEP_INPUTS):
        rng = random.Random(seed)
        for _ in range(STEP_INPUTS):
            made = mutated_json if target.is_json and rng.random() < 0.5 else mutated
            check(target, made(rng, corpus), tmp_path)
