from __future__ import annotations

import pytest
from gpufs import format_size, parse_size
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512B", 512),
        ("64k", 65536),
        ("64K", 65536),
        ("64KiB", 65536),
        ("64kib", 65536),
        ("64kB", 64000),
        ("8GiB", 8 << 30),
        ("8 GiB", 8 << 30),
        (" 8GiB ", 8 << 30),
        ("8G", 8 << 30),
        ("8GB", 8 * 10**9),
        ("1.5GiB", 3 << 29),
        ("0.5k", 512),
        ("2TiB", 2 << 40),
        ("1PiB", 1 << 50),
        (4096, 4096),
        (0, 0),
    ],
)
def test_sizes_are_understood(text: str | int, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GiB",
        "8XiB",
        "8GiBs",
        "-1",
        "+1",
        "1e6",
        "1,5GiB",
        "0x10",
        "1.3B",
        "1.",
        ".5k",
        "8 G iB",
        "nan",
        "٣",
        "9EiB",
    ],
)
def test_other_text_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole number") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("number", [-1, 2**63, "9000PiB"])
def test_numbers_out_of_range_are_refused(number: int | str) -> None:
    with pytest.raises(ValueError, match="size must"):
        parse_size(number)


@pytest.mark.parametrize("other", [1.5, None, b"8GiB", True])
def test_other_types_are_refused(other: object) -> None:
    with pytest.raises(TypeError):
        parse_size(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024 * 1024 - 1, "1 MiB"),
        (8 << 30, "8 GiB"),
        (85899345920, "80 GiB"),
        (1 << 62, "4096 PiB"),
    ],
)
def test_sizes_are_shown(number: int, expected: str) -> None:
    assert format_size(number) == expected


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_what_is_shown_is_near_what_was_meant(number: int) -> None:
    assert abs(parse_size_of_shown(number) - number) <= number * 0.05 + 0.5


def parse_size_of_shown(number: int) -> float:
    value, unit = format_size(number).split()
    return float(value) * parse_size(f"1{unit}")
