"""Collages against a plain NumPy implementation, on the CPU device and on a GPU."""

from __future__ import annotations

import errno
import os
import resource
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs import _core, collage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from .conftest import Command, names, run_program

SETTINGS = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TABLES, BITS_MAX, TAKEN, PAGE = 32, 24, 16, 4096
FUNCTION = np.dtype([("terms", "u1", 8), ("threshold", "<i4")])


def synthetic(seed: int, count: int) -> Any:
    return np.frombuffer(_core.collage_tiles(seed, 0, count), np.uint8).reshape(count, 32, 32, 3)


def kinds_of_tiles(kind: str, seed: int, count: int) -> Any:
    """Tiles that are all different, all noise, few and often, or all the same."""
    random = np.random.default_rng(seed)
    if kind == "noise":
        return random.integers(0, 256, (count, 32, 32, 3), np.uint8)
    drawn = synthetic(seed, count)
    if kind == "few":
        return drawn[random.integers(0, min(count, 5), count)]
    return np.repeat(drawn[:1], count, 0) if kind == "one" else drawn


def build_of(folder: Path, tiles: Any) -> Path:
    folder.mkdir()
    builder = _core.CollageBuilder(os.fsencode(folder), 2)
    for part in np.array_split(tiles, 3):
        builder.add(part.tobytes())
    builder.finish()
    assert (builder.tiles, builder.tables_written) == (len(tiles), TABLES)
    return folder


def picture_of(blocks: Any, columns: int) -> Any:
    """Blocks, row by row, as one array of pixels."""
    rows = len(blocks) // columns
    return (
        blocks.reshape(rows, columns, 32, 32, 3).swapaxes(1, 2).reshape(rows * 32, columns * 32, 3)
    )


def blocks_of(picture: Any) -> Any:
    rows, columns = picture.shape[0] // 32, picture.shape[1] // 32
    return picture.reshape(rows, 32, columns, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)


def histograms(tiles: Any) -> Any:
    """Of each tile and channel: how many pixels are in a bin or in one before."""
    counts = [
        np.bincount(c.ravel() // 2, minlength=128)
        for tile in tiles
        for c in np.moveaxis(tile, 2, 0)
    ]
    return np.cumsum(counts, 1).reshape(len(tiles), 3, 128)


def projections(functions: Any, of: Any) -> Any:
    """Of each tile or block, table and bit."""
    features = of.reshape(len(of), 48, 8).sum(2)
    return (features[:, functions["terms"] & 127] * np.where(functions["terms"] & 128, -1, 1)).sum(
        3
    )


def keys(functions: Any, of: Any) -> Any:
    """Of each tile or block, and table."""
    above = projections(functions, of) > functions["threshold"]
    return (above << np.arange(functions.shape[1])).sum(2)


class Dataset:
    """A dataset's files, read without any of gpufs."""

    def __init__(self, folder: Path) -> None:
        records = np.fromfile(folder / "records", np.uint8).reshape(-1, PAGE)
        self.count = len(records)
        self.tiles = records[:, :3072].reshape(-1, 32, 32, 3)
        self.histograms = (
            records[:, 3072:3840].copy().view("<u2").astype(np.int64).reshape(-1, 3, 128)
        )
        self.rest = records[:, 3840:]
        tables = np.fromfile(folder / "tables", np.uint8)
        assert tables[:8].tobytes() == b"gpufscol"
        version, table_count, low, high, self.bits, zero = tables[8:32].view("<u4").tolist()
        assert (version, table_count, low, high, zero) == (1, TABLES, self.count, 0, 0)
        self.functions = tables[PAGE : PAGE + TABLES * BITS_MAX * 12].view(FUNCTION)
        self.functions = self.functions.reshape(TABLES, BITS_MAX)[:, : self.bits]
        at = PAGE + self.whole(TABLES * BITS_MAX * 12)
        self.offsets, self.numbers = [], []
        for _ in range(TABLES):
            for part, length in ((self.offsets, 2**self.bits + 1), (self.numbers, self.count)):
                part.append(tables[at : at + length * 4].view("<u4").astype(np.int64))
                at += self.whole(length * 4)
        assert at == len(tables)

    @staticmethod
    def whole(count: int) -> int:
        return -(-count // PAGE) * PAGE


def naive(dataset: Dataset, picture: Any) -> tuple[list[int], list[int], int, int]:
    """Returns tiles and distances of all blocks, the candidates, and the blocks without any."""
    tiles, distances, candidates, without = [], [], 0, 0
    of = histograms(blocks_of(picture))
    for histogram, own in zip(of, keys(dataset.functions, of), strict=True):
        listed: set[int] = set()
        for key, offsets, numbers in zip(own, dataset.offsets, dataset.numbers, strict=True):
            listed |= set(numbers[offsets[key] : offsets[key + 1]][:TAKEN].tolist())
        if not listed:
            without += 1
            listed = {int(own[0]) % dataset.count}
        order = sorted(listed)
        apart = np.abs(dataset.histograms[order] - histogram).sum((1, 2))
        tiles.append(order[int(apart.argmin())])  # the first of the least
        distances.append(int(apart.min()))
        candidates += len(order)
    return tiles, distances, candidates, without


def check(fs: gpufs.Mount, folder: Path, picture: Any) -> int:
    """Compares all implementations with the naive one. Returns the blocks without candidates."""
    dataset = Dataset(folder)
    rows, columns = picture.shape[0] // 32, picture.shape[1] // 32
    tiles, distances, candidates, without = naive(dataset, picture)
    given = (os.fsencode(folder), picture.tobytes(), columns, rows)
    found = _core.collage(fs.core, *given)
    assert np.frombuffer(found[0], np.uint32).tolist() == tiles
    assert np.frombuffer(found[1], np.uint32).tolist() == distances
    assert found[2] == picture_of(dataset.tiles[tiles], columns).tobytes()
    assert found[3] == candidates
    for way in ("cpu", "cuda", "resident") if fs.device == "cuda" else ("cpu",):
        assert (
            np.frombuffer(_core.bench_collage_rival(way, *given, 2)[0], np.uint32).tolist() == tiles
        ), way
    return without


@SETTINGS
@given(
    count=st.integers(1, 400),
    tiles=st.sampled_from(["different", "noise", "few", "one"]),
    blocks=st.sampled_from(["different", "noise", "few", "one"]),
    columns=st.integers(1, 7),
    rows=st.integers(1, 5),
    seed=st.integers(0, 100),
)
def test_collages_are_the_naive_ones(
    fs: gpufs.Mount,
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    tiles: str,
    blocks: str,
    columns: int,
    rows: int,
    seed: int,
) -> None:
    folder = build_of(
        tmp_path_factory.mktemp("tiles") / "dataset", kinds_of_tiles(tiles, seed, count)
    )
    check(fs, folder, picture_of(kinds_of_tiles(blocks, seed + 1, columns * rows), columns))


def test_blocks_without_candidates_have_a_tile_too(fs: gpufs.Mount, tmp_path: Path) -> None:
    folder = build_of(tmp_path / "dataset", kinds_of_tiles("one", 1, 7))
    assert check(fs, folder, picture_of(synthetic(2, 80), 8)) > 0


def test_a_dataset_is_what_its_layout_says(tmp_path: Path) -> None:
    tiles = synthetic(3, 3000)
    dataset = Dataset(build_of(tmp_path / "dataset", tiles))
    assert dataset.bits == 8
    assert np.array_equal(dataset.tiles, tiles)
    of = histograms(tiles)
    assert np.array_equal(dataset.histograms, of)
    assert not dataset.rest.any()
    of_tiles = keys(dataset.functions, of)
    for table in range(TABLES):
        order = np.argsort(of_tiles[:, table], kind="stable")
        assert np.array_equal(dataset.numbers[table], order)
        assert np.array_equal(
            np.diff(dataset.offsets[table]), np.bincount(of_tiles[:, table], minlength=256)
        )
    medians = np.sort(projections(dataset.functions, of), 0)[len(tiles) // 2]
    assert np.array_equal(dataset.functions["threshold"], medians)
    used = dataset.functions["terms"] & 127
    assert used.max() < 48
    assert all(len(set(terms)) == 8 for terms in used.reshape(-1, 8).tolist())


def test_a_dataset_does_not_depend_on_threads_and_batches(tmp_path: Path) -> None:
    for name, threads in (("one", 1), ("many", 7)):
        collage.build(tmp_path / name, synthetic=1500, seed=4, threads=threads)
    build_of(tmp_path / "parts", synthetic(4, 1500))
    for file in ("records", "tables"):
        first, *others = [
            (tmp_path / name / file).read_bytes() for name in ("one", "many", "parts")
        ]
        assert all(other == first for other in others)


@pytest.mark.parametrize("page", ["1KiB", "4KiB", "64KiB"])
def test_caches_smaller_than_the_dataset(fs: gpufs.Mount, tmp_path: Path, page: str) -> None:
    folder = build_of(tmp_path / "dataset", synthetic(5, 6000))
    picture = picture_of(synthetic(6, 48), 8)
    # Each warp of a GPU holds a page.
    with gpufs.mount(
        device=fs.device, cache="16MiB" if fs.device == "cuda" else "2MiB", page=page
    ) as mount:
        check(mount, folder, picture)
        check(mount, folder, picture)


def test_blocks_that_are_alike_find_in_a_small_cache_what_the_one_before_loaded(
    tmp_path: Path,
) -> None:
    """Wherever in the picture they are."""
    folder, blocks = build_of(tmp_path / "dataset", synthetic(5, 6000)), synthetic(6, 24)
    loads = []
    for times in (1, 8):
        # Two threads: of more, a busy machine keeps some waiting, which then load pages again.
        with gpufs.mount(device="cpu", cpu_threads=2, cache="1MiB", page="1KiB") as mount:
            check(mount, folder, picture_of(np.tile(blocks, (times, 1, 1, 1)), 24))
            loads.append(
                sum(mount.stats()[name] for name in ("direct_loads", "staged_loads", "bulk_loads"))
            )
    assert loads[1] < 3 * loads[0]


def test_large_pictures_go_to_the_device_in_bands(fs: gpufs.Mount, tmp_path: Path) -> None:
    folder = build_of(tmp_path / "dataset", synthetic(5, 60))
    columns, rows = 120, 93  # 33 MiB, of which the last row is alone
    blocks = synthetic(6, 500)[np.random.default_rng(7).integers(0, 500, columns * rows)]
    given = (os.fsencode(folder), picture_of(blocks, columns).tobytes(), columns, rows)
    tiles, _, made, _, _ = _core.collage(fs.core, *given)
    assert tiles == _core.bench_collage_rival("cpu", *given, 2)[0]
    assert (
        made
        == picture_of(Dataset(folder).tiles[np.frombuffer(tiles, np.uint32)], columns).tobytes()
    )


def test_pages_that_hold_no_histogram_are_refused(tmp_path: Path) -> None:
    folder = build_of(tmp_path / "dataset", synthetic(5, 10))
    with (
        gpufs.mount(device="cpu", cache="1MiB", page="512") as mount,
        pytest.raises(ValueError, match="1 KiB"),
    ):
        _core.collage(mount.core, os.fsencode(folder), bytes(3072), 1, 1)


def test_what_is_wrong_in_a_dataset_is_told(fs: gpufs.Mount, tmp_path: Path) -> None:
    """By the host, or where it only looks at the head, by the kernel."""
    folder = build_of(tmp_path / "dataset", synthetic(7, 100))
    whole = {name: (folder / name).read_bytes() for name in ("records", "tables")}
    first_offsets = PAGE + Dataset.whole(TABLES * BITS_MAX * 12)
    picture = synthetic(8, 1)[0].tobytes()

    def fails(name: str, content: bytes, number: int, text: str) -> None:
        (folder / name).unlink()
        (folder / name).write_bytes(content)
        with pytest.raises(OSError, match=text) as caught:
            _core.collage(fs.core, os.fsencode(folder), picture, 1, 1)
        assert (caught.value.errno, caught.value.filename) == (number, str(folder / name))
        with pytest.raises(OSError, match=text):
            _core.bench_collage_rival("cpu", os.fsencode(folder), picture, 1, 1, 1)
        (folder / name).write_bytes(whole[name])

    def changed(at: int, count: int, byte: int) -> bytes:
        tables = whole["tables"]
        return tables[:at] + bytes([byte]) * count + tables[at + count :]

    fails("records", whole["records"][:-1], errno.ENODATA, "shorter")
    fails("tables", whole["tables"][:-1], errno.ENODATA, "shorter")
    fails("tables", whole["tables"][:10], errno.ENODATA, "No data|shorter")
    fails("tables", changed(0, 1, 0), errno.EINVAL, "no tables of a collage dataset")
    fails("tables", changed(8, 1, 2), errno.EINVAL, "no tables of a collage dataset")
    fails("tables", changed(24, 1, 60), errno.EINVAL, "no tables of a collage dataset")
    fails("tables", changed(16, 8, 0), errno.EINVAL, "no tables of a collage dataset")
    fails("tables", changed(PAGE, 8, 127), errno.EINVAL, "hash function")
    fails(
        "tables",
        changed(first_offsets, PAGE, 255),
        errno.EINVAL,
        "not what a collage dataset holds",
    )
    many = b"".join(  # tile numbers that there are none of, in all tables
        whole["tables"][at : at + PAGE] + b"\xfe" * PAGE
        for at in range(first_offsets, len(whole["tables"]), 2 * PAGE)
    )
    fails(
        "tables",
        whole["tables"][:first_offsets] + many,
        errno.EINVAL,
        "not what a collage dataset holds",
    )
    _core.collage(fs.core, os.fsencode(folder), picture, 1, 1)


def save(path: Path, picture: Any) -> Path:
    Image.fromarray(picture).save(path)
    return path


def test_pictures_are_cut_at_all_scales(fs: gpufs.Mount, tmp_path: Path) -> None:
    (tmp_path / "in" / "below").mkdir(parents=True)
    picture = np.random.default_rng(1).integers(0, 256, (64, 100, 3), np.uint8)
    save(tmp_path / "in" / "a.png", picture)
    save(tmp_path / "in" / "below" / "b.jpg", synthetic(9, 1)[0])
    save(tmp_path / "in" / "small.png", picture[:31])
    (tmp_path / "in" / "text.png").write_text("no picture")
    (tmp_path / "in" / "z.png").write_bytes((tmp_path / "in" / "a.png").read_bytes()[:-500])
    told: list[tuple[str, int, int | None]] = []
    built = collage.build(tmp_path / "out", [tmp_path / "in"], tell=lambda *what: told.append(what))
    skipped = [Path(path).name for path in built.skipped]
    assert (built.tiles, built.pictures, skipped) == (
        1 + 6 + 1,
        2,
        ["small.png", "text.png", "z.png"],
    )
    tiles = Dataset(tmp_path / "out").tiles.astype(int)
    halved = picture[:, :].reshape(32, 2, 50, 2, 3).mean((1, 3))
    assert np.abs(tiles[0] - halved[:, :32]).max() <= 1
    assert np.array_equal(tiles[1:7], blocks_of(picture[:, :96]))
    assert told[0] == (f"pictures of {tmp_path / 'in'}", 0, 5)
    assert (told[-1][0], told[-1][2]) == ("tables", TABLES)
    again = collage.build(tmp_path / "coarse", [tmp_path / "in" / "a.png"], finest=63)
    assert again.tiles == 1
    # A picture finds its own tiles.
    done = collage.make(fs, tmp_path / "in" / "a.png", tmp_path / "out", tmp_path / "c.png")
    assert (done.columns, done.rows, done.tiles, done.distance) == (3, 2, 6, 0)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "c.png")), picture[:64, :96])


def test_what_is_no_regular_file_is_skipped(tmp_path: Path, mount: gpufs.Mount) -> None:
    (tmp_path / "in").mkdir()
    fifo = tmp_path / "in" / "a.png"
    os.mkfifo(fifo)
    program = """
import sys
from gpufs import collage
try:
    collage.build(sys.argv[1], [sys.argv[2]])
except ValueError as error:
    print(error)
"""
    assert "a.png: not a regular file" in run_program(
        program, tmp_path / "none", tmp_path / "in"
    )  # it does not wait
    save(tmp_path / "in" / "b.png", synthetic(9, 1)[0])
    built = collage.build(tmp_path / "out", [tmp_path / "in"])
    assert (built.tiles, built.skipped) == (1, [str(fifo)])
    with pytest.raises(ValueError, match=r"a\.png: not a regular file"):
        collage.make(mount, fifo, tmp_path / "out", tmp_path / "c.png")


def test_pictures_of_16_bit_grey(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    grey = np.array([0, 255, 256, 40_000, 65_535], np.uint16).repeat(32)[None, :].repeat(32, axis=0)
    Image.fromarray(grey).save(tmp_path / "in" / "a.png")
    assert collage.build(tmp_path / "out", [tmp_path / "in"]).tiles == 5
    tiles = Dataset(tmp_path / "out").tiles
    assert [np.unique(tile).tolist() for tile in tiles] == [[0], [0], [1], [156], [255]]


def test_large_pictures_are_welcome_up_to_where_pillow_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collage.build(tmp_path / "tiles", synthetic=50)
    save(tmp_path / "a.png", picture_of(synthetic(1, 6), 3))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gpufs.mount(device="cpu", cache="16MiB") as mount:
            collage.make(mount, tmp_path / "a.png", tmp_path / "tiles", tmp_path / "c.png")
        assert collage.build(tmp_path / "more", [tmp_path / "a.png"], finest=32).tiles == 1
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)
    with pytest.raises(ValueError, match="a\\.png: more pixels than Pillow decodes"):
        collage.build(tmp_path / "none", [tmp_path / "a.png"])


def test_what_cannot_be_built_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "file").write_text("no picture")
    (tmp_path / "file").write_text("something")
    before = names(tmp_path)

    def fails(error: type[Exception], text: str, out: str, *sources: str, **options: Any) -> None:
        with pytest.raises(error, match=text):
            collage.build(tmp_path / out, [tmp_path / source for source in sources], **options)
        assert names(tmp_path) == before

    fails(ValueError, "empty: no picture", "new", "empty")
    fails(ValueError, "text: no picture", "new", "text")
    fails(ValueError, "file: no picture", "new", "file")
    fails(ValueError, "without tiles", "new")
    fails(ValueError, "finer", "new", "text", finest=16)
    fails(ValueError, "less than 2\\^32", "new", synthetic=1 << 32)
    fails(FileNotFoundError, "absent'$", "new", "absent")
    fails(FileNotFoundError, "nowhere/new'$", "nowhere/new", synthetic=1)
    fails(NotADirectoryError, "file'$", "file", synthetic=1)
    told: list[Any] = []
    with pytest.raises(OSError) as caught:
        collage.build(tmp_path / "text", synthetic=1, tell=lambda *what: told.append(what))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTEMPTY, str(tmp_path / "text"))
    assert told == []  # not after an hour of work
    assert names(tmp_path / "text") == ["file"]
    collage.build(tmp_path / "empty", synthetic=1)
    assert names(tmp_path / "empty") == ["records", "tables"]
    assert names(tmp_path) == before


def test_what_cannot_be_made_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collage.build(tmp_path / "tiles", synthetic=50)
    (tmp_path / "no tiles").mkdir()
    picture = picture_of(synthetic(1, 6), 3)
    save(tmp_path / "a.png", picture)
    save(tmp_path / "flat.png", picture[:31])
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:-1000])
    (tmp_path / "old.png").write_bytes(b"what was there")
    before = names(tmp_path)

    def fails(
        error: type[Exception], text: str, image: str, dataset: str, out: str = "old.png"
    ) -> None:
        with pytest.raises(error, match=text):
            collage.make(mount, tmp_path / image, tmp_path / dataset, tmp_path / out)
        assert names(tmp_path) == before
        assert (tmp_path / "old.png").read_bytes() == b"what was there"

    with gpufs.mount(device="cpu", cache="1MiB", read_only=True) as mount:
        with monkeypatch.context() as patch:
            patch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
            fails(ValueError, "a.png: more pixels", "a.png", "tiles")
        fails(ValueError, "text.png: no picture", "text.png", "tiles")
        fails(ValueError, "cut.png: no picture", "cut.png", "tiles")
        fails(ValueError, "flat.png: 96x31 pixels", "flat.png", "tiles")
        fails(ValueError, "old.bmp: a collage is written to", "a.png", "tiles", "old.bmp")
        fails(FileNotFoundError, "absent.png'$", "absent.png", "tiles")
        fails(IsADirectoryError, "tiles'$", "tiles", "tiles")
        fails(FileNotFoundError, "absent/tables'$", "a.png", "absent")
        fails(FileNotFoundError, "no tiles/tables'$", "a.png", "no tiles")
        fails(FileNotFoundError, "nowhere/c.png'$", "a.png", "tiles", "nowhere/c.png")


@contextmanager
def disk_full_after(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("tiles", [10, 500])  # whose tables are too large, or the records
def test_a_full_disk_leaves_no_dataset(tmp_path: Path, tiles: int) -> None:
    with disk_full_after(200_000), pytest.raises(OSError) as caught:
        collage.build(tmp_path / "tiles", synthetic=tiles)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "tiles"))
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_collage(tmp_path: Path) -> None:
    collage.build(tmp_path / "tiles", synthetic=50)
    save(tmp_path / "a.png", picture_of(synthetic(1, 6), 3))
    with (
        gpufs.mount(device="cpu", cache="1MiB", read_only=True) as mount,
        disk_full_after(1000),
        pytest.raises(OSError) as caught,
    ):
        collage.make(mount, tmp_path / "a.png", tmp_path / "tiles", tmp_path / "c.png")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "c.png"))
    assert names(tmp_path) == ["a.png", "tiles"]


def test_without_pillow_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'gpufs\[collage\]'"):
        collage.build(tmp_path / "tiles", [tmp_path])
    assert collage.build(tmp_path / "tiles", synthetic=5).tiles == 5


def test_the_command_line(run: Command, tmp_path: Path) -> None:
    picture, tiles, out = tmp_path / "a.png", tmp_path / "tiles", tmp_path / "c.png"
    save(picture, np.pad(picture_of(synthetic(1, 15), 5), ((0, 20), (0, 9), (0, 0))))
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "b.png", picture_of(synthetic(2, 64), 8))
    (tmp_path / "in" / "text").write_text("no picture")
    done = run(
        "collage",
        "build",
        tiles,
        tmp_path / "in",
        "--synthetic",
        "500",
        "--finest",
        "128",
        "--stats",
    )
    assert (done.stdout, done.returncode) == (b"", 0)
    assert b"gpufs: 1 files are no pictures, or too small, such as " in done.stderr
    assert b"tiles     521, of 1 pictures" in done.stderr
    done = run(
        "collage", picture, "-d", tiles, "-o", out, "--device", "cpu", "--cache", "8MiB", "--stats"
    )
    assert (done.stdout, done.returncode) == (b"", 0)
    assert b"blocks    5 x 3, " in done.stderr
    expected = picture_of(
        Dataset(tiles).tiles[naive(Dataset(tiles), np.asarray(Image.open(picture))[:96, :160])[0]],
        5,
    )
    assert np.array_equal(np.asarray(Image.open(out)), expected)
    quiet = run("collage", "-d", tiles, "-o", tmp_path / "c.jpg", picture, "--device", "cpu")
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == (b"", b"", 0)
    before = names(tmp_path)
    for arguments, text in (
        (("build", tiles, "--synthetic", "1"), b"tiles: Directory not empty"),
        (("build", tmp_path / "new"), b"without tiles"),
        (("build", tmp_path / "new", tmp_path / "absent"), b"absent: No such file"),
        (("build", tmp_path / "new", "--synthetic", "-1"), b"--synthetic"),
        ((picture, "-o", out), b"--dataset"),
        ((picture, "-d", tmp_path, "-o", out), b"tables: No such file"),
        ((tiles / "tables", "-d", tiles, "-o", out), b"tables: no picture"),
        ((picture, "-d", tiles, "-o", out, "--page", "512"), b"1 KiB"),
        ((picture, "-d", tiles, "-o", tmp_path / "c.gif"), b"c.gif: "),
    ):
        failed = run("collage", *map(os.fspath, arguments))
        assert (failed.stdout, failed.returncode) == (b"", 2), arguments
        assert len(failed.stderr.splitlines()) == 1, failed.stderr
        assert text in failed.stderr
    assert names(tmp_path) == before
