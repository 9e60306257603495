"""Vectors of files that are near others against NumPy's float64, on the CPU device and on a GPU."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs import _core, search
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Command

SETTINGS = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KINDS = ("npy", "fvecs", "raw")
EMPTY = 2**64 - 1


def save(path: Path, vectors: Any, kind: str = "npy") -> Path:
    """Writes vectors into a file of a kind, which the name tells."""
    file = path.with_suffix(f".{kind}")
    if kind == "npy":
        np.save(file, vectors)
    elif kind == "fvecs":
        lengths = np.full((len(vectors), 1), vectors.shape[1], np.int32)
        np.hstack([lengths.view(np.float32), vectors]).tofile(file)
    else:
        vectors.tofile(file)
    return file


def whole_numbers(rng: np.random.Generator, count: int, dimensions: int) -> Any:
    """Squared distances of them are exact, and often equal."""
    return rng.integers(-2, 3, (count, dimensions)).astype(np.float32)


def expected(
    queries: Any, databases: Sequence[Any], threshold: float, top: int | None
) -> tuple[Any, Any, Any]:
    """Of each query databases, indices and distances."""
    columns = top or 1
    which = np.repeat(np.arange(len(databases)), [len(database) for database in databases])
    index = np.concatenate(
        [np.zeros(0, int), *(np.arange(len(database)) for database in databases)]
    )
    vectors = np.concatenate([np.zeros((0, queries.shape[1])), *databases]).astype(np.float64)
    places = np.full((2, len(queries), columns), -1)
    distances = np.full((len(queries), columns), np.inf)
    for i, query in enumerate(queries.astype(np.float64)):
        with np.errstate(invalid="ignore", over="ignore"):
            squared = np.square(vectors - query).sum(axis=1)
        near = np.flatnonzero(squared <= threshold * threshold)
        if top is not None:
            near = near[np.argsort(squared[near], kind="stable")]
        near = near[:columns]
        places[:, i, : near.size] = which[near], index[near]
        distances[i, : near.size] = np.sqrt(squared[near])
    return *places, distances


def check(
    found: search.Result, queries: Any, databases: Sequence[Any], threshold: float, top: int | None
) -> None:
    which, index, distances = expected(queries, databases, threshold, top)
    assert found.databases.tolist() == which.tolist()
    assert found.indices.tolist() == index.tolist()
    np.testing.assert_allclose(found.distances, distances, rtol=1e-12)
    assert (found.queries, found.dimensions) == queries.shape
    assert found.vectors == sum(len(database) for database in databases)
    assert found.bytes == sum(database.nbytes for database in databases)
    assert found.found == int((which[:, 0] >= 0).sum())


@SETTINGS
@given(
    dimensions=st.sampled_from([1, 2, 3, 31, 32, 33, 100, 129, 1023, 1025]),
    queries=st.one_of(st.integers(1, 20), st.just(135)),
    counts=st.lists(st.one_of(st.integers(0, 40), st.just(150)), max_size=3),
    kinds=st.lists(st.sampled_from(KINDS), min_size=4, max_size=4),
    distance=st.sampled_from([0.0, 1.0, 1.5, math.inf]),
    top=st.sampled_from([None, 1, 3, 50]),
    seed=st.integers(0, 1000),
)
def test_what_is_found_is_what_numpy_finds(
    fs: gpufs.Mount,
    tmp_path: Path,
    dimensions: int,
    queries: int,
    counts: list[int],
    kinds: list[str],
    distance: float,
    top: int | None,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    threshold = distance * max(1, round(math.sqrt(dimensions)))
    if seed % 2 == 0:
        asked, *searched = (whole_numbers(rng, count, dimensions) for count in (queries, *counts))
    else:
        asked, *searched = (
            rng.standard_normal((count, dimensions), np.float32) for count in (queries, *counts)
        )
    for database in searched:  # some are equal to a query, and some to each other
        some = rng.integers(0, len(database), len(database) // 3) if len(database) else []
        database[some] = asked[rng.integers(0, queries, len(some))]
    files = [
        save(tmp_path / f"database{i}", database, kinds[i]) for i, database in enumerate(searched)
    ]
    found = search.find(
        fs,
        save(tmp_path / "queries", asked, kinds[3]),
        files,
        threshold=None if top is not None and threshold == math.inf else threshold,
        top=top,
        dimensions=dimensions if kinds[3] == "raw" else None,
    )
    check(found, asked, searched, threshold, top)


@pytest.mark.parametrize("top", [None, 3])
def test_numbers_that_are_no_numbers_or_at_the_ends(
    fs: gpufs.Mount, tmp_path: Path, top: int | None
) -> None:
    rng = np.random.default_rng(1)
    database = rng.standard_normal((60, 40), np.float32)
    special = np.array(
        [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e19, 1e-20, 3e-23, 1e-45, 0], np.float32
    )
    database[:40] = rng.choice(special, (40, 40), p=[0.01, 0.01, 0.01, *[0.97 / 7] * 7])
    database[30:40] = rng.choice(special[5:], (10, 40))
    database[40:45] = special[7] * rng.standard_normal((5, 40))  # squares are too small for float32
    queries = np.concatenate(
        [database[::7], database[40:45] * np.float32(1.01), np.zeros((2, 40), np.float32)]
    )
    q, d = save(tmp_path / "q", queries), save(tmp_path / "d", database)
    for threshold in (0.0, 1e-22, 1e-19, 5.0, 1e20, math.inf):
        found = search.find(fs, q, [d], threshold=threshold, top=top)
        check(found, queries, [database], threshold, top)


def test_squares_at_the_ends_of_float32(fs: gpufs.Mount, tmp_path: Path) -> None:
    """Below the smallest and above the largest number, but not where bfloat16 rounds down."""
    vectors = np.zeros((2, 40), np.float32)
    vectors[0] = 2.0**-75 * (1 + 2.0**-10)
    vectors[1, :3] = 2.0**62 * 1.635
    file = save(tmp_path / "v", vectors)
    assert search.find(fs, file, [file], threshold=0).indices.tolist() == [[0], [1]]


@pytest.mark.parametrize(("dimensions", "page"), [(5000, "4KiB"), (300, "512"), (100, "64KiB")])
def test_databases_larger_than_the_cache(
    fs: gpufs.Mount, tmp_path: Path, dimensions: int, page: str
) -> None:
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((20, dimensions), np.float32)
    databases = [
        rng.standard_normal((700_000 // dimensions, dimensions), np.float32) for _ in range(2)
    ]
    databases[1][-1] = queries[3] + np.float32(1e-3)
    q = save(tmp_path / "q", queries)
    files = [
        save(tmp_path / f"d{kind}", database, kind)
        for kind, database in zip(KINDS, databases, strict=False)
    ]
    with gpufs.mount(device=fs.device, cache="1MiB", page=page) as mount:
        check(search.find(mount, q, files, top=5), queries, databases, math.inf, 5)
        near = 0.1 * math.sqrt(dimensions)
        check(search.find(mount, q, files, threshold=near), queries, databases, near, None)
        assert mount.stats()["evictions"] > 0


def test_equal_vectors_are_equally_far(fs: gpufs.Mount, tmp_path: Path) -> None:
    """However pages cut them: the first is the nearest."""
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((5, 777), np.float32)
    database = np.repeat(rng.standard_normal((3, 777), np.float32), 50, axis=0)
    q, d = save(tmp_path / "q", queries), save(tmp_path / "d", database)
    with gpufs.mount(device=fs.device, cache="4MiB", page="512") as mount:
        found = search.find(mount, q, [d], top=150)
    for indices, distances in zip(found.indices, found.distances, strict=True):
        for begin in (0, 50, 100):
            assert np.diff(indices[begin : begin + 50]).tolist() == [1] * 49
            assert len(set(distances[begin : begin + 50])) == 1


def test_sums_that_lose_what_is_small_find_what_is_near(fs: gpufs.Mount, tmp_path: Path) -> None:
    """Each product is just too small to change the first, and each square just large enough."""
    small = 2.0**-12
    vector = np.full((1, 4096), small * (1 - 2.0**-8), np.float32)
    query = np.full((1, 4096), small * (1 + 2.0**-9), np.float32)
    vector[0, 0] = query[0, 0] = 1
    paths = save(tmp_path / "q", query, "raw"), [save(tmp_path / "d", vector, "raw")]
    for asked in ({"top": 1}, {"threshold": 0.01}, {"top": 1, "threshold": 0.01}):
        found = search.find(fs, *paths, dimensions=4096, **asked)
        assert found.indices.tolist() == [[0]]


def test_what_lies_behind_the_first_matches_is_not_read(
    fs: gpufs.Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    databases = [rng.standard_normal((8000, 100), np.float32) for _ in range(2)]
    databases[0][5] = 100
    q = save(
        tmp_path / "q", databases[0][5:120:50], "raw"
    )  # in the vectors that are looked through by themselves
    files = [save(tmp_path / f"d{i}", database, "raw") for i, database in enumerate(databases)]
    loaded: dict[str, int] = {}
    look = _core.search

    def look_and_note(*arguments: Any) -> Any:
        found = look(*arguments)
        loaded.update({Path(entry.path).name: entry.loaded_bytes for entry in mount.file_stats()})
        return found

    monkeypatch.setattr(_core, "search", look_and_note)
    with gpufs.mount(device=fs.device, cache="16MiB", page="4KiB", bulk=0) as mount:
        found = search.find(mount, q, files, threshold=1, dimensions=100)
        assert found.indices.ravel().tolist() == [5, 55, 105]
        assert 0 < loaded["d0.raw"] < databases[0].nbytes // 2
        assert loaded["d1.raw"] == 0
        assert search.find(mount, q, files, threshold=0.5, top=1, dimensions=100).found == 3
        assert loaded["d1.raw"] == databases[1].nbytes


def saved_place(path: Path, vectors: Any) -> tuple[bytes, int, int, int]:
    """Writes vectors, and returns them as _core.search takes them."""
    return (os.fsencode(save(path, vectors, "fvecs")), 4, 4 * vectors.shape[1] + 4, len(vectors))


def test_databases_that_are_shorter_than_what_is_brought_ahead(
    fs: gpufs.Mount, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    queries = whole_numbers(rng, 200, 32)
    databases = [whole_numbers(rng, count, 32) for count in (1000, 900, 0, 1000, 10, 950)]
    q, *d = (
        saved_place(tmp_path / f"v{i}", vectors) for i, vectors in enumerate([queries, *databases])
    )
    with gpufs.mount(device=fs.device, cache="16MiB", page="4KiB", bulk="64KiB") as mount:
        _, found = _core.search(mount.core, q, d, 32, math.inf, 5, True)
    which, index, _ = expected(queries, databases, math.inf, 5)
    begins = np.cumsum([0, *map(len, databases)])[which]
    assert np.array_equal(np.frombuffer(found, np.uint64).reshape(200, 5), begins + index)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ((0, 1 << 57, 0), "more vectors than files have room for"),
        ((1 << 60, 64, 0), "more vectors than files have room for"),
        ((0, 64, 1 << 45), "more vectors than files have room for"),
        ((2, 64, 1), "no multiple of their size"),
        ((0, 66, 1), "no multiple of their size"),
        ((0, 32, 1), "vectors that overlap"),
    ],
)
def test_databases_that_no_file_has_are_refused(
    fs: gpufs.Mount, tmp_path: Path, place: tuple[int, int, int], why: str
) -> None:
    q, d = (saved_place(tmp_path / name, np.zeros((4, 16), np.float32)) for name in ("q", "d"))
    with pytest.raises(OSError, match=why) as refused:
        _core.search(fs.core, q, [d, (d[0], *place)], 16, 1.0, 0, True)
    assert refused.value.errno == errno.EINVAL
    assert refused.value.filename == str(tmp_path / "d.fvecs")


def test_the_next_database_is_brought_ahead_as_far_as_it_may_be_needed(
    fs: gpufs.Mount, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.standard_normal((count, 128), np.float32) for count in (256, 4000))
    q, *d = (
        saved_place(tmp_path / f"v{i}", v)
        for i, v in enumerate([first[:1].repeat(200, axis=0), first, second])
    )
    with gpufs.mount(
        device=fs.device, cache="16MiB", page="4KiB", bulk="256KiB", cpu_threads=1
    ) as mount:
        _, found = _core.search(mount.core, q, d, 128, 1.0, 0, True)
        stats = mount.stats()
        brings = mount.bulk_path == "on"
    assert found == bytes(8 * 200)
    loaded = sum(stats[f"{kind}_loads"] for kind in ("bulk", "direct", "staged")) * 4096
    assert first.nbytes * (3 if brings else 1) < loaded < second.nbytes // 2


def test_the_rivals_find_the_same(fs: gpufs.Mount, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pieces = [0] if fs.device == "cpu" else [0, 1 << 17]
    for queries, dimensions, counts in (
        (3, 100, (200, 0, 77)),
        (40, 1500, (90, 200)),
        (150, 33, (1000, 500)),
        (33, 3, (0,)),
    ):
        asked, *searched = (whole_numbers(rng, count, dimensions) for count in (queries, *counts))
        searched[-1][-20:] = asked[:1]
        q = (os.fsencode(save(tmp_path / "q", asked, "fvecs")), 4, 4 * dimensions + 4, queries)
        d = [
            (
                os.fsencode(save(tmp_path / f"d{i}", database, "raw")),
                0,
                4 * dimensions,
                len(database),
            )
            for i, database in enumerate(searched)
        ]
        for top in (0, 1, 10):
            for threshold in (0.0, 1.5 * math.sqrt(dimensions), math.inf):
                squared, indices = _core.search(fs.core, q, d, dimensions, threshold, top, False)
                for piece in pieces:
                    theirs = _core.bench_search_rival(q, d, dimensions, threshold, top, 2, piece)
                    assert theirs[:2] == (squared, indices)
    if _core.built_cuda_version == 0:
        with pytest.raises(OSError, match="built without it"):
            _core.bench_search_rival(q, d, dimensions, 1.0, 0, 2, 1 << 17)


def test_a_rival_says_which_file_is_short(tmp_path: Path) -> None:
    file = save(tmp_path / "v", np.zeros((4, 4), np.float32), "raw")
    for count, name in ((5, b"v.raw"), (4, b"gone")):
        place = (os.fsencode(tmp_path / os.fsdecode(name)), 0, 16, count)
        with pytest.raises(OSError) as caught:
            _core.bench_search_rival((os.fsencode(file), 0, 16, 4), [place], 4, 1.0, 0, 2, 0)
        assert os.fsencode(caught.value.filename).endswith(name)


def test_what_is_wrong_is_told(fs: gpufs.Mount, tmp_path: Path) -> None:
    good = np.ones((5, 8), np.float32)
    for name, array in {
        "good": good,
        "flat": good.reshape(-1),
        "double": good.astype(np.float64),
        "fortran": np.asfortranarray(good),
        "nine": np.ones((5, 9), np.float32),
        "narrow": good[:, :0],
    }.items():
        save(tmp_path / name, array)
    whole = save(tmp_path / "good", good, "fvecs").read_bytes()
    (tmp_path / "cut.fvecs").write_bytes(whole[:-1])
    (tmp_path / "tiny.fvecs").write_bytes(whole[:3])
    (tmp_path / "none.fvecs").write_bytes(b"")
    (tmp_path / "last.fvecs").write_bytes(whole[:-36] + np.int32(7).tobytes() + whole[-32:])
    (tmp_path / "minus.fvecs").write_bytes(np.int32(-8).tobytes() + whole[4:])
    (tmp_path / "raw").write_bytes(bytes(100))
    (tmp_path / "text.npy").write_text("no vectors")
    header = save(tmp_path / "odd", good).read_bytes()
    (tmp_path / "odd.npy").write_bytes(
        header[:8] + (118 - 1).to_bytes(2, "little") + header[10:126] + b"\n" + bytes(160)
    )

    def fails(
        error: type[Exception], text: str, queries: str, database: str, **options: Any
    ) -> None:
        with pytest.raises(error, match=text):
            search.find(
                fs, tmp_path / queries, [tmp_path / database], **({"threshold": 1.0} | options)
            )

    fails(ValueError, "flat.npy: 1 dimensions", "good.npy", "flat.npy")
    fails(ValueError, "double.npy: numbers of type float64", "double.npy", "good.npy")
    fails(ValueError, "fortran.npy: in Fortran order", "good.npy", "fortran.npy")
    fails(ValueError, "nine.npy: vectors of 9 numbers, but 8 are", "good.npy", "nine.npy")
    fails(
        ValueError,
        "good.npy: vectors of 8 numbers, but 9 are",
        "good.npy",
        "nine.npy",
        dimensions=9,
    )
    fails(ValueError, "narrow.npy: vectors without numbers", "narrow.npy", "good.npy")
    fails(ValueError, "text.npy", "good.npy", "text.npy")
    fails(ValueError, "odd.npy: numbers at places", "good.npy", "odd.npy")
    fails(ValueError, "cut.fvecs: truncated", "good.npy", "cut.fvecs")
    fails(ValueError, "tiny.fvecs: truncated", "tiny.fvecs", "good.npy")
    fails(ValueError, "none.fvecs: truncated", "none.fvecs", "good.npy")
    fails(ValueError, "last.fvecs: .* the last 7", "good.npy", "last.fvecs")
    fails(ValueError, "minus.fvecs: not an .fvecs file", "good.npy", "minus.fvecs")
    fails(ValueError, "raw: a raw file does not say", "raw", "good.npy")
    fails(ValueError, "raw: truncated: 100 bytes", "good.npy", "raw")
    fails(FileNotFoundError, "absent.npy", "good.npy", "absent.npy")
    fails(FileNotFoundError, "absent", "absent", "good.npy", dimensions=8)
    fails(IsADirectoryError, "Is a directory", "good.npy", ".")
    fails(ValueError, "neither a threshold", "good.npy", "good.npy", threshold=None)
    fails(ValueError, "top must be from 1 to 1,024: 0", "good.npy", "good.npy", top=0)
    fails(ValueError, "top must be from 1 to 1,024", "good.npy", "good.npy", top=2**70)
    fails(ValueError, "so many dimensions: 0", "good.npy", "good.npy", dimensions=0)
    fails(ValueError, "so many dimensions", "good.npy", "good.npy", dimensions=2**70)
    for threshold in (-1.0, math.nan):
        fails(ValueError, "a threshold is a distance", "good.npy", "good.npy", threshold=threshold)
    with pytest.raises(TypeError, match="sequence of paths"):
        search.find(fs, tmp_path / "good.npy", str(tmp_path / "good.npy"), top=1)


def test_files_without_vectors(fs: gpufs.Mount, tmp_path: Path) -> None:
    vectors = np.ones((5, 8), np.float32)
    full, empty = save(tmp_path / "full", vectors), save(tmp_path / "empty", vectors[:0])
    nothing = save(tmp_path / "nothing", vectors[:0], "fvecs")
    assert search.find(fs, full, [empty, nothing, full], top=1).databases.tolist() == [[2]] * 5
    assert search.find(fs, full, [], top=2).indices.tolist() == [[-1, -1]] * 5
    assert search.find(fs, full, [nothing], threshold=1).found == 0
    assert search.find(fs, empty, [full], top=3).indices.shape == (0, 3)


def test_a_database_that_shrinks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = np.random.default_rng(1).standard_normal((2000, 100), np.float32)
    for name in ("q", "a", "b"):
        save(Path(name), vectors[: 10 if name == "q" else None], "raw")
    look = _core.search

    def shrink_and_look(*arguments: Any) -> Any:
        os.truncate("b.raw", 100_000)
        return look(*arguments)

    monkeypatch.setattr(_core, "search", shrink_and_look)
    with (
        gpufs.mount(device="cpu", cache="1MiB") as mount,
        pytest.raises(OSError, match="shorter") as caught,
    ):
        search.find(mount, "q.raw", ["a.raw", "b.raw"], threshold=0.5, top=1, dimensions=100)
    assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, "b.raw")


# --- The command line ---


SECOND = os.fsdecode(b"sec\xffond")  # no UTF-8


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Queries, and two databases: query 0 is in the second, query 2 in both."""
    vectors = np.arange(60, dtype=np.float32).reshape(6, 10) ** 2
    first, second = vectors[[3, 2, 4]], vectors[[0, 2]]
    second[0, 0] += 0.25
    return (
        save(tmp_path / "q", vectors[:3]),
        save(tmp_path / "first", first),
        save(tmp_path / SECOND, second, "raw"),
    )


def test_the_command_line(run: Command, images: tuple[Path, Path, Path]) -> None:
    queries, first, second = map(os.fsencode, images)
    arguments = ("search", "-q", queries, "-d", first, "-d", second, "--cache", "8MiB")
    done = run(*arguments, "--threshold", "1")
    lines = b"0\t" + second + b"\t0\t0.25\n2\t" + first + b"\t1\t0.0\n"
    assert (done.stdout, done.stderr, done.returncode) == (lines, b"", 0)
    done = run(*arguments, "--top", "2", "--threshold", "1", "--stats")
    lines = b"0\t" + second + b"\t0\t0.25\n2\t" + first + b"\t1\t0.0\n2\t" + second + b"\t1\t0.0\n"
    assert (done.stdout, done.returncode) == (lines, 0)
    assert b"compared  3 queries, 5 vectors of 10 numbers" in done.stderr
    assert b"found     something for 2 queries" in done.stderr
    done = run(*arguments, "--threshold", "0.1", "--json")
    told = json.loads(done.stdout)
    assert (told["queries"], told["vectors"], told["dimensions"], told["bytes"]) == (3, 5, 10, 200)
    assert told["databases"] == [os.fsdecode(first), os.fsdecode(second)]
    assert told["matches"] == [{"query": 2, "database": 0, "index": 1, "distance": 0.0}]
    done = run("search", "-q", queries, "-d", second, "--threshold", "0", "--cache", "8MiB")
    assert (done.stdout, done.returncode) == (b"2\t" + second + b"\t1\t0.0\n", 0)


def test_status_1_when_nothing_is_found(
    run: Command, images: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    queries, first, _ = images
    save(tmp_path / "far", np.full((1, 10), 1e6, np.float32))
    done = run(
        "search",
        "-q",
        tmp_path / "far.npy",
        "-d",
        first,
        "--threshold",
        "1",
        "-o",
        tmp_path / "out",
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 1)
    assert (tmp_path / "out").read_bytes() == b""
    done = run("search", "-q", queries, "-d", first, "--threshold", "1", "-o", tmp_path / "out")
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)
    assert (tmp_path / "out").read_bytes() == b"2\t%s\t1\t0.0\n" % os.fsencode(first)


def test_status_2_and_one_line_when_something_is_wrong(
    run: Command, images: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    queries, first, second = images
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, text in (
        (("-d", first), "--threshold, --top, or both"),
        (("-d", first, "--threshold", "-1"), "a threshold is a distance"),
        (("-d", first, "--top", "0"), "top must be from 1 to 1,024"),
        (("-d", first, "--top", "99999999999999999999"), "top must be from 1"),
        (("-d", first, "--top", "many"), "'--top'"),
        (("--top", "1"), "--database"),
        (("-d", tmp_path / "gone.npy", "--top", "1"), "gone.npy: No such file or directory"),
        (("-d", second, "--top", "1", "--dimensions", "9"), "q.npy: vectors of 10 numbers"),
        (("-d", first, "--top", "1", "--page", "1000"), "page"),
        (
            ("-d", first, "--top", "1", "-o", tmp_path / "no" / "out"),
            "out: No such file or directory",
        ),
        (("-d", first, "--top", "1", "-o", tmp_path), "not a regular file"),
    ):
        done = run("search", "-q", queries, *arguments)
        assert (done.stdout, done.returncode) == (b"", 2), arguments
        assert len(done.stderr.splitlines()) == 1
        assert text in done.stderr.decode()
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_full_disk_leaves_what_was_there(run: Command, tmp_path: Path) -> None:
    vectors = save(tmp_path / "v", np.arange(1000, dtype=np.float32).reshape(-1, 1))
    (tmp_path / "out").write_bytes(b"what was there")
    limited = (
        "bash",
        "-c",
        'ulimit -f 8; exec "$@"',
        "bash",
    )  # as a disk that is full after so much
    done = run(
        "search", "-q", vectors, "-d", vectors, "--top", "9", "-o", tmp_path / "out", prefix=limited
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert b"out: File too large" in done.stderr
    assert (tmp_path / "out").read_bytes() == b"what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "v.npy"]
