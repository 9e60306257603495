"""The text of metrics, and its parser."""

from __future__ import annotations

import math
import os

import gpufs
import pytest
from gpufs import _exposition, metrics
from hypothesis import given
from hypothesis import strategies as st

from .exposition_rules import NAME, validate


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=32))
def test_buckets_hold_what_their_bounds_say(counts: list[int]) -> None:
    text = "".join(
        f"{line}\n"
        for line in [
            *_exposition._head("x", "histogram", "-"),
            *_exposition._histogram("x", {}, counts),
        ]
    )
    series = validate(text)
    bounds = {
        float(dict(labels)["le"]): value
        for (name, labels), value in series.items()
        if name == "x_bucket"
    }
    for bit in range(len(counts) - 1):
        # Times are whole nanoseconds: the next power of two, which `le` must not include, is in the
        # next bucket.
        bound = max(bound for bound in bounds if bound * 1e9 < 2 ** (bit + 1) - 0.5)
        assert bounds[bound] == sum(counts[: bit + 1])
        assert bound * 1e9 == pytest.approx(2 ** (bit + 1) - 1, rel=1e-12)
    assert bounds[math.inf] == sum(counts)


PATHS = st.binary(min_size=1).map(lambda content: content.replace(b"\0", b"/")) | st.text(
    alphabet='\\"\nn{},= \t\r\v\f\x1c\x85\u2028\ufffda', min_size=1
).map(str.encode)


@given(st.lists(PATHS, min_size=1, max_size=8, unique=True))
def test_every_path_is_a_label_of_its_own(paths: list[bytes]) -> None:
    lines = [*_exposition._head("x", "gauge", "-")]
    lines += [
        _exposition._sample("x", _exposition._path_labels(os.fsdecode(path)), 1) for path in paths
    ]
    text = "".join(f"{line}\n" for line in lines)
    text.encode()  # no surrogates are left
    series = validate(text)
    assert len(series) == len(paths)
    decoded = []
    for sample, (_, labels) in zip(metrics.parse(text), series, strict=True):
        assert sample.labels == dict(labels)
        exact = sample.labels.get("file_bytes")
        decoded.append(sample.labels["file"].encode() if exact is None else bytes.fromhex(exact))
    assert decoded == paths


def test_files_are_told_on_request_only(
    mount: gpufs.Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = 'a\\b"c\nd\udcff'
    files = [
        gpufs.FileStatistics(name, 10, 1, 2, 3, 4, 5, 6),
        gpufs.FileStatistics("plain", 10, 7, 0, 0, 0, 1, 0),
        gpufs.FileStatistics("plain", 10, 10, 0, 0, 0, 1, 0),  # opened in another way
    ]
    monkeypatch.setattr(gpufs.Mount, "file_stats", lambda _mount: files)
    assert "file" not in {
        label for _, labels in validate(metrics.exposition([mount])) for label, _ in labels
    }
    series = validate(metrics.exposition([mount], files=True))
    told = {
        (name, dict(labels)["file"], dict(labels).get("file_bytes")): value
        for (name, labels), value in series.items()
        if "file" in dict(labels)
    }
    odd = ('a\\b"c\nd\ufffd', os.fsencode(name).hex())
    assert told["gpufs_file_hits_total", *odd] == 1
    assert told["gpufs_file_loads_total", *odd] == 2
    assert told["gpufs_file_direct_loads_total", *odd] == 3
    assert told["gpufs_file_loaded_bytes_total", *odd] == 4
    assert told["gpufs_file_holders", *odd] == 5
    assert told["gpufs_file_extents", *odd] == 6
    assert told["gpufs_file_hits_total", "plain", None] == 17
    assert len(told) == 12


def test_what_the_format_allows_is_parsed() -> None:
    text = (
        "# A comment\n\n \t\n#\n"
        '  a:b_1{ x = "1" , y="{},= \\\\n\\n\\"" , } \t 1.5e-3   1395066363000 \n'
        "plain +Inf\nempty{} NaN\n"
        'odd{file="\r\v\x1c\x85\u2028"} -1 -2\n'
    )
    first, plain, empty, odd = metrics.parse(text)
    assert first == ("a:b_1", {"x": "1", "y": '{},= \\n\n"'}, 0.0015)
    assert plain == ("plain", {}, math.inf)
    assert (empty.name, empty.labels, math.isnan(empty.value)) == ("empty", {}, True)
    assert odd == ("odd", {"file": "\r\v\x1c\x85\u2028"}, -1)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "a",
            "a b",
            "1a 1",
            'a{x="1" 1',
            "a{x=1} 1",
            'a{x="\\t"} 1',
            'a{x="1"y="2"} 1',
            'a{x="1",,} 1',
            "a{,} 1",
        ),
        *(
            'a{x="1"}',
            "a 1 2 3",
            "a 1 2.5",
            "<html>",
            'a{="1"} 1',
            'a{x="1"} 1 }',
            "é 1",
            'a{x="1\n"} 1',
        ),
    ],
)
def test_what_the_format_does_not_have_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        metrics.parse(f"good 1\n{line}\n")


@given(st.text(alphabet='ab{}"=,\\n 1\n#', max_size=30))
def test_anything_is_parsed_or_an_error(text: str) -> None:
    try:
        samples = metrics.parse(text)
    except ValueError:
        return
    for sample in samples:
        assert NAME.fullmatch(sample.name)
