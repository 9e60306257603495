"""The benchmarks by name. Each is a function that returns its cases; nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gpufs.bench import _arrays, _collage, _grep, _linear, _matmul, _peers, _quiet, _search, _writing
from gpufs.bench._alone import alone
from gpufs.bench._measure import Case, Task, Unit
from gpufs.bench._sources import (
    DISK_CHUNK,
    GATHERED_BYTES_MAX,
    SEQUENTIAL_VARIANTS,
    Shared,
    Variant,
    copy_engine,
    first_touch,
    hits,
    host_read,
    host_reopens,
    host_small_files,
    pipeline,
    raw_pull,
    raw_read,
    read_then_copy,
    reopens,
    small_files,
    walk,
)
from gpufs.bench._world import State, World

KIB: Final = 1024
MIB: Final = 1024 * KIB
PAGE: Final = 4 * KIB
SEQUENTIAL_PAGES: Final = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
QUICK_SEQUENTIAL_PAGES: Final = (4 * KIB, 64 * KIB)

# With fewer frames for each warp that may hold one, a call may find all frames pinned.
FRAMES_OF_SMALL_CACHE: Final = {"cuda": 16384, "cpu": 64}

KVIKIO_READS: Final = 1 << 15  # of one page each; about ten microseconds a read, for Python alone

Make: TypeAlias = Callable[[World, Shared], Iterable[Case]]


@dataclass(frozen=True)
class Benchmark:
    """A named benchmark.

    Attributes:
        title: one line for people.
        axis: the parameter that a plot draws along x.
        make: gives the cases, by world; ``--quick`` means fewer of them.
    """

    name: str
    title: str
    axis: str
    make: Make


BENCHMARKS: Final[dict[str, Benchmark]] = {}


def benchmark(name: str, title: str, axis: str) -> Callable[[Make], Make]:
    """Registers a function as a benchmark."""

    def register(make: Make) -> Make:
        BENCHMARKS[name] = Benchmark(name, title, axis, make)
        return make

    return register


def _counts(world: World, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
    return quick if world.quick else full


def _fitting(world: World, sizes: Iterable[int]) -> list[int]:
    """Returns the sizes of which the file has enough for many groups to work on at once."""
    return [size for size in sizes if size * 64 <= world.file_bytes]


def _evicts(world: World, times: int) -> bool:
    """Returns whether a cache that is this much smaller than the file has frames enough."""
    return world.file_bytes // times // PAGE >= FRAMES_OF_SMALL_CACHE[world.device]


def _workers(world: World) -> tuple[int, ...]:
    """Returns counts of workers and threads. The twin's kernels need the cores too."""
    if world.device == "cpu":
        return (1, 2)
    return _counts(world, (1, 2, 4, 8, 16), (1, 8, 16))


# --- Tasks that recur ---


def _pull(
    world: World, shared: Shared, chunk: int, *, random: bool = True, blocks: int = 0, operations: int = 0
) -> Task:
    def make() -> Task:
        the_walk = walk(world, "map", chunk, random=random, blocks=blocks, operations=operations or None)
        return Task("raw pulls", "GB/s", raw_pull(world, the_walk))

    return shared.task(("pull", chunk, random, blocks, operations), make)


def _first_touch(world: World, shared: Shared, page: int, variant: Variant) -> Task:
    """Of the whole file, front to back, extents registered."""

    def make() -> Task:
        return Task("gpufs", "GB/s", first_touch(world, variant.walk(world, page), page=page, variant=variant))

    return shared.task(("first touch", page, variant.name), make)


def _copy_engine(world: World, shared: Shared) -> Task:
    name = "copy engine" if world.device == "cuda" else "memcpy (no copy engine)"
    return shared.task(("copy engine",), lambda: Task(name, "GB/s", copy_engine(world)))


def _pipeline(world: World, shared: Shared, threads: int, state: State = "hot") -> Task:
    name = f"pipeline, {threads} threads"
    return shared.task(("pipeline", threads, state), lambda: Task(name, "GB/s", pipeline(world, threads, state)))


def _host_copy(world: World, shared: Shared, chunk: int, threads: int, way: str = "mapping") -> Task:
    def make() -> Task:
        operations = min(world.file_bytes // chunk, threads * (1 << 18) * PAGE // chunk)
        the_walk = walk(world, "map", chunk, operations=operations)
        call = "memcpy" if way == "mapping" else "pread"
        return Task(f"host {call}, {threads} threads", "GB/s", host_read(world, way, the_walk, threads))

    return shared.task(("host", way, chunk, threads), make)


def _host_writes(world: World, shared: Shared, how: _writing.How, threads: int, way: _writing.Way) -> Task:
    name = f"{'stores into a mapping' if way == 'mapping' else way}, {threads} threads"
    source = _writing.file_by_host(world, how, threads, way)
    return shared.task(("written", how, threads, way), lambda: Task(name, "GB/s", source))


def _disk(world: World, shared: Shared, chunk: int, threads: int, *, random: bool) -> Task:
    def make() -> Task:
        operations = min(world.file_bytes // chunk, (1 << 14) if random else (2 << 30) // chunk)
        the_walk = walk(world, "map", chunk, random=random, operations=operations)
        return Task(f"disk, {threads} threads", "GB/s", host_read(world, "direct_io", the_walk, threads))

    return shared.task(("disk", chunk, threads, random), make)


def _kvikio_reads(world: World, shared: Shared) -> Iterator[Task]:
    for threads in (1, 8, 16):
        name = f"KvikIO ({threads} thread{'s' if threads > 1 else ''})"  # in plots a series each
        yield shared.task(
            ("kvikio", threads),
            lambda name=name, threads=threads: Task(name, "GB/s", _peers.kvikio_read(world, threads)),  # type: ignore[misc]
        )


# --- The machine ---


@benchmark("limits", "What the machine gives without a file system", "chunk")
def _limits(world: World, shared: Shared) -> Iterator[Case]:
    def line(what: str, chunk: int, task: Task) -> Case:
        return Case({"what": what, "chunk": chunk}, None, task)

    yield line("pinned memory, copy engine", 16 * MIB, _copy_engine(world, shared))
    for chunk in (512, PAGE, 64 * KIB):
        yield line("registered file pages, pulled", chunk, _pull(world, shared, chunk))
    for chunk in (PAGE, 16 * KIB):
        task = Task("raw reads", "GB/s", raw_read(world, walk(world, "map", chunk)))
        yield line("device memory, read at random", chunk, task)
    for threads in _workers(world):
        yield line("page cache, memcpy from mapping", PAGE, _host_copy(world, shared, PAGE, threads))
        yield line("page cache, pread", PAGE, _host_copy(world, shared, PAGE, threads, "pread"))
    yield line("page cache, pread", MIB, _host_copy(world, shared, MIB, world.threads, "pread"))
    yield line("disk, sequential", DISK_CHUNK, _disk(world, shared, DISK_CHUNK, 8, random=False))
    yield line("disk, random", PAGE, _disk(world, shared, PAGE, 64, random=True))


# --- First touches ---


@benchmark("sequential", "Whole file, front to back, extents registered (TOCS 2014, figures 7 and 8)", "page")
def _sequential(world: World, shared: Shared) -> Iterator[Case]:
    for page in _fitting(world, _counts(world, SEQUENTIAL_PAGES, QUICK_SEQUENTIAL_PAGES)):
        for variant in SEQUENTIAL_VARIANTS:
            yield Case(
                {"page": page, "variant": variant.name},
                _first_touch(world, shared, page, variant),
                _copy_engine(world, shared),
                0.95,
                (
                    _pull(world, shared, page, random=False),
                    shared.task(("read then copy",), lambda: Task("pread + one copy", "GB/s", read_then_copy(world))),
                    _pipeline(world, shared, min(world.threads, 16)),
                    shared.task(("cufile",), lambda: Task("cuFile", "GB/s", _peers.cufile_read(world))),
                    *_kvikio_reads(world, shared),
                ),
            )


@benchmark(
    "breakdown", "Time of a whole-file read: all, the transfer alone, the cache alone (TOCS 2014, figure 8)", "page"
)
def _breakdown(world: World, shared: Shared) -> Iterator[Case]:
    for page in _fitting(world, _counts(world, SEQUENTIAL_PAGES, QUICK_SEQUENTIAL_PAGES)):
        yield Case(
            {"page": page},
            replace(_first_touch(world, shared, page, SEQUENTIAL_VARIANTS[0]), unit="ms/GB"),
            replace(_pull(world, shared, page, random=False), unit="ms/GB"),
            None,
            (Task("hits", "ms/GB", hits(world, walk(world, "map", page, random=False), page=page)),),
        )


@benchmark("contact", "Whole file on first contact, registration or staging included", "workers")
def _contact(world: World, shared: Shared) -> Iterator[Case]:
    for workers in _workers(world):
        for variant in SEQUENTIAL_VARIANTS:
            yield Case(
                {"state": "hot", "workers": workers, "variant": variant.name},
                Task(
                    "gpufs",
                    "GB/s",
                    first_touch(world, variant.walk(world, PAGE), registered=False, variant=variant, workers=workers),
                ),
                _pipeline(world, shared, workers),
                1.0,
                (_copy_engine(world, shared),),
            )
    workers = min(8, world.threads)
    for variant in SEQUENTIAL_VARIANTS:
        yield Case(
            {"state": "dropped", "workers": workers, "variant": variant.name},
            Task(
                "gpufs",
                "GB/s",
                first_touch(
                    world,
                    variant.walk(world, PAGE),
                    registered=False,
                    state="dropped",
                    variant=variant,
                    workers=workers,
                ),
            ),
            _pipeline(world, shared, workers, "dropped"),
            1.0,
            (_disk(world, shared, DISK_CHUNK, 8, random=False),),
        )


@benchmark("random", "Random pages, each once, extents registered (TOCS 2014, figure 9)", "page")
def _random(world: World, shared: Shared) -> Iterator[Case]:
    pages = _counts(world, (512, 2 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB), (512, 4 * KIB, 64 * KIB))
    for page in _fitting(world, pages):
        gathered = min(world.file_bytes, GATHERED_BYTES_MAX) // page
        peers = (
            Task("np.memmap[rows] + copy", "GB/s", _peers.memmap_gather(world, page, gathered)),
            Task("torch UVA gather", "GB/s", _peers.torch_uva_gather(world, page, gathered)),
            Task("KvikIO (16 threads)", "GB/s", _peers.kvikio_gather(world, page, min(gathered, KVIKIO_READS), 16)),
            _host_copy(world, shared, page, min(world.threads, 16)),
        )
        yield Case(
            {"page": page},
            Task("gpufs", "GB/s", first_touch(world, walk(world, "map", page), page=page)),
            _pull(world, shared, page),
            0.97 if page >= PAGE else 0.70,
            peers if page == PAGE else (),
        )


@benchmark("large", "A file larger than the cache: steady eviction", "file / cache")
def _large(world: World, shared: Shared) -> Iterator[Case]:
    for times in _counts(world, (2, 4, 16), (4,)):
        cache = world.file_bytes // times
        if not _evicts(world, times):
            continue
        for random in (True, False) if times == 4 else (True,):
            the_walk = walk(world, "map", PAGE, random=random)
            yield Case(
                {"order": "random" if random else "forward", "file / cache": times},
                Task("gpufs", "GB/s", first_touch(world, the_walk, cache=cache)),
                _pull(world, shared, PAGE, random=random),
                0.95,
            )


@benchmark("staged", "Random 4 KiB pages through host workers, no direct path", "workers")
def _staged(world: World, shared: Shared) -> Iterator[Case]:
    operations = min(world.file_bytes // PAGE, 1 << (16 if world.quick else 20))
    the_walk = walk(world, "map", PAGE, operations=operations)
    for workers in _workers(world):
        yield Case(
            {"workers": workers},
            Task("gpufs", "GB/s", first_touch(world, the_walk, registered=False, pinned=0, workers=workers)),
            _host_copy(world, shared, PAGE, workers),
            0.90,
        )


@benchmark("blocks", "Random 4 KiB pages: how many blocks of 256 threads saturate", "blocks")
def _blocks(world: World, shared: Shared) -> Iterator[Case]:
    # As many pages for each block, so that one block does not take a minute; powers of two.
    for blocks in _counts(world, (1, 2, 4, 8, 16, 32, 64, 256), (1, 8, 64)):
        operations = min(world.file_bytes // PAGE, blocks << 14)
        yield Case(
            {"blocks": blocks},
            Task("gpufs", "GB/s", first_touch(world, walk(world, "map", PAGE, operations=operations, blocks=blocks))),
            _pull(world, shared, PAGE, blocks=blocks, operations=operations),
            0.90,
        )


@benchmark("latency", "One fault at a time: a single warp, random 4 KiB pages", "path")
def _latency(world: World, shared: Shared) -> Iterator[Case]:
    operations = min(world.file_bytes // PAGE, 1024 if world.quick else 4096)
    alone = walk(world, "map", PAGE, operations=operations, blocks=1, threads=32)
    pull = Task("raw pulls", "us", raw_pull(world, alone))
    yield Case({"path": "direct"}, Task("gpufs", "us", first_touch(world, alone)), pull)
    yield Case({"path": "staged"}, Task("gpufs", "us", first_touch(world, alone, registered=False, pinned=0)), pull)
    yield Case(
        {"path": "hit"},
        Task("gpufs", "us", hits(world, alone, page=PAGE)),
        Task("raw reads", "us", raw_read(world, alone)),
    )


# --- Hits ---


@benchmark("hits", "Reading from the cache, against page and chunk (TOCS 2014, figure 10)", "chunk")
def _hits(world: World, shared: Shared) -> Iterator[Case]:
    wanted = (
        *((access, page, page) for access in ("map", "map_each") for page in (512, 4 * KIB, 16 * KIB, 64 * KIB)),
        *(
            (access, page, chunk)
            for access in ("read_by_warp", "read_by_block")
            for page in (4 * KIB, 64 * KIB)
            for chunk in (KIB, 4 * KIB, 16 * KIB)
        ),
    )
    few = {
        ("map", PAGE, PAGE),
        ("map_each", PAGE, PAGE),
        ("read_by_warp", PAGE, PAGE),
        ("read_by_block", PAGE, 16 * KIB),
    }
    for access, page, chunk in wanted:
        if world.quick and (access, page, chunk) not in few:
            continue
        the_walk = walk(world, access, chunk)
        yield Case(
            {"access": access, "page": page, "chunk": chunk},
            Task("gpufs", "GB/s", hits(world, the_walk, page=page)),
            shared.task(
                ("raw", access, chunk),
                lambda access=access, the_walk=the_walk: Task("raw reads", "GB/s", raw_read(world, the_walk)),  # type: ignore[misc]
            ),
            0.90,
        )


@benchmark("gather", "Records picked at random from the cache", "record")
def _gather(world: World, shared: Shared) -> Iterator[Case]:
    operations_max = 1 << (20 if world.quick else 23)
    records: list[tuple[Literal["view", "view_several", "gather"], int, int]] = [
        *(("view", PAGE, record) for record in _counts(world, (8, 64, 256, 1024, 4096), (8, 64))),
        *(
            ("view_several", page, record)
            for page in (PAGE, 64 * KIB)
            for record in _counts(world, (8, 64, 256), (64,))
        ),
        *(("gather", PAGE, record) for record in _counts(world, (8, 64, 256, 1024, 4096), (64, 1024))),
    ]
    for access, page, record in records:
        operations = min(world.file_bytes // record, operations_max, GATHERED_BYTES_MAX // record)
        the_walk = walk(world, access, record, operations=operations)
        peers: tuple[Task, ...] = ()
        if access == "gather":
            peers = (Task("torch UVA gather", "GB/s", _peers.torch_uva_gather(world, record, operations)),)
        yield Case(
            {"access": access, "page": page, "record": record},
            Task("gpufs", "GB/s", hits(world, the_walk, page=page)),
            Task("raw reads", "GB/s", raw_read(world, the_walk)),
            0.50,
            peers,
        )


@benchmark("arrays", "From Python: rows of an array by an index on the device, a whole file, a small call", "record")
def _array(world: World, shared: Shared) -> Iterator[Case]:
    for record in _counts(world, (512, PAGE), (512, PAGE)):
        operations = min(1 << 20, world.file_bytes // _arrays.CACHE_PART // record)
        peers = (
            Task("np.memmap[rows] + copy", "GB/s", _peers.memmap_gather(world, record, operations)),
            Task("torch UVA gather", "GB/s", _peers.torch_uva_gather(world, record, operations)),
            Task("KvikIO (16 threads)", "GB/s", _peers.kvikio_gather(world, record, min(operations, KVIKIO_READS), 16)),
        )
        yield Case(
            {"what": "rows", "record": record},
            Task("gpufs", "GB/s", _arrays.rows(world, record, operations)),
            _pull(world, shared, record, operations=operations),
            0.90 if record >= PAGE else 0.80,
            peers,
        )
        yield Case(
            {"what": "the same again", "record": record},
            Task("gpufs", "GB/s", _arrays.rows(world, record, operations, again=True)),
            Task("torch.index_select", "GB/s", _arrays.torch_index_select(world, record, operations)),
            0.70 if record >= PAGE else None,
        )
    yield Case(
        {"what": "whole file", "record": world.file_bytes},
        Task("gpufs", "GB/s", _arrays.whole_file(world)),
        _copy_engine(world, shared),
        0.90,
    )
    yield Case({"what": "small call", "record": PAGE}, Task("gpufs", "us", _arrays.small_calls(world)))


@benchmark("matvec", "A matrix file times a vector file", "columns")
def _matvec(world: World, shared: Shared) -> Iterator[Case]:
    problems = (("float32", 4096), ("bfloat16", 8192), ("float32", 1 << 20), ("float32", 32))
    for dtype, columns in problems[:1] if world.quick else problems:
        problem = _linear.Problem(world, columns, dtype)
        yield Case(
            {"type": dtype, "columns": columns, "run": "first"},
            Task("gpufs", "GB/s", _linear.ours(problem)),
            _copy_engine(world, shared),
            0.95,
            (
                Task(f"CPU, {world.threads} threads", "GB/s", _linear.rival(problem, world.threads, 0)),
                Task("CUDA, pinned buffers", "GB/s", _linear.rival(problem, min(world.threads, 16), _linear.PIECE)),
            ),
        )
        yield Case(
            {"type": dtype, "columns": columns, "run": "again"},
            Task("gpufs", "GB/s", _linear.ours(problem, again=True)),
        )


@benchmark("matmul", "Matrix files multiplied into a file (TOCS 2014, section 6.1.5)", "rows")
def _matmul_files(world: World, shared: Shared) -> Iterator[Case]:
    for dtype, problem in _matmul.problems(world):
        yield from _matmul.cases(dtype, problem)


@benchmark("search", "Image search: vectors of databases that are near queries (TOCS 2014, section 6.2.1)", "queries")
def _image_search(world: World, shared: Shared) -> Iterator[Case]:
    for problem in _search.problems(world):
        yield from _search.cases(problem, lambda: _copy_engine(world, shared))


@benchmark("collage", "A picture made of the most similar tiles of a dataset (SYSTOR 2016, section 6.1)", "blocks")
def _collages(world: World, shared: Shared) -> Iterator[Case]:
    tiles = _collage.Tiles(world)
    sizes = ((512, 384), (1024, 768), (2048, 1536), (4096, 3072), (8192, 6144))
    for width, height in sizes[:2] if world.quick else sizes:
        problem = _collage.Problem(tiles, width // 32, height // 32)
        on_cpu = Task(f"CPU, {world.threads} threads", "k/s", _collage.rival(problem, "cpu"))
        by_cuda = Task("CUDA, the CPU reads", "k/s", _collage.rival(problem, "cuda"))
        resident = Task("CUDA, all in GPU memory", "k/s", _collage.rival(problem, "resident"))
        for page in (PAGE, KIB):  # what holds a record, and what holds its histogram
            first = Task("gpufs", "k/s", _collage.ours(problem, page=page))
            yield Case({"blocks": problem.blocks, "page": page, "run": "first"}, first, on_cpu, None, (by_cuda,))
        if (width, height) == sizes[-1]:
            # Smaller than what the picture needs; in pages that hold a histogram, of which it has room for more.
            few = max(world.file_bytes // 16, FRAMES_OF_SMALL_CACHE[world.device] * PAGE)
            for page in (PAGE, KIB):
                small = Task("gpufs", "k/s", _collage.ours(problem, cache=few, page=page))
                yield Case({"blocks": problem.blocks, "page": page, "run": "small cache"}, small)
        again = Task("gpufs", "k/s", _collage.ours(problem, cache=None, again=True))
        yield Case({"blocks": problem.blocks, "page": PAGE, "run": "again"}, again, resident)


@benchmark("hotspot", "All blocks read the same few pages", "pages")
def _hotspot(world: World, shared: Shared) -> Iterator[Case]:
    operations = world.file_bytes // PAGE
    everywhere = Task("gpufs, all pages", "GB/s", hits(world, walk(world, "map", PAGE), page=PAGE))
    for pages in _counts(world, (1, 16, 256), (1, 256)):
        few = walk(world, "map", PAGE, span=pages * PAGE, operations=operations)
        yield Case(
            {"pages": pages},
            Task("gpufs", "GB/s", hits(world, few, page=PAGE)),
            everywhere,
            1.0,
            (Task("raw reads", "GB/s", raw_read(world, few)),),
        )


# --- Writing ---


@benchmark("writing", "Writing: to cached pages, appended records, whole files without sync", "workers")
def _write(world: World, shared: Shared) -> Iterator[Case]:
    for chunk in _counts(world, (512, 4 * KIB, 16 * KIB), (4 * KIB,)):
        yield Case(
            {"what": "cached", "chunk": chunk},
            Task("gpufs", "GB/s", _writing.cached(world, chunk)),
            Task("raw stores", "GB/s", _writing.raw(world, chunk)),
            0.70 if chunk >= PAGE else None,
        )
    for record in _counts(world, (100, 1000), (100,)):
        yield Case({"what": "append", "chunk": record}, Task("gpufs", "M/s", _writing.appends(world, record)))
    ways: tuple[_writing.How, ...] = ("new", "overwritten")
    for workers in _counts(world, (1, 8), (1,)):
        for how in ways:
            for chunk in _counts(world, (64 * KIB, PAGE), (64 * KIB,)):
                yield Case(
                    {"what": f"file, {how}", "chunk": chunk, "workers": workers},
                    Task("gpufs", "GB/s", _writing.file_by_gpufs(world, how, workers, chunk)),
                    _host_writes(world, shared, how, workers, "pwrite"),
                    0.90,
                    (
                        _host_writes(world, shared, how, workers, "pwrite from memory"),
                        _host_writes(world, shared, how, workers, "mapping"),
                    ),
                )


# --- Opens, idling, grep ---


@benchmark("small_files", "Open, read and close small files, 14 KiB on average", "workers")
def _small_files(world: World, shared: Shared) -> Iterator[Case]:
    for workers in _counts(world, (4, 16), (16,)):
        yield Case(
            {"files": world.small_files, "workers": workers},
            Task("gpufs", "k/s", small_files(world, workers)),
            Task(f"host, {workers} threads", "k/s", host_small_files(world, workers)),
            1.0,
        )


@benchmark("reopen", "gopen and gclose of a file that is open", "threads")
def _reopen(world: World, shared: Shared) -> Iterator[Case]:
    threads = min(world.threads, 16)
    operations = 1 << (16 if world.quick else 20)
    yield Case(
        {"threads": threads},
        Task("gpufs", "M/s", reopens(world, operations)),
        Task(f"host open + close, {threads} threads", "M/s", host_reopens(world, operations, threads)),
    )


@benchmark("idle", "Host CPU of a mount unused, and under kernels that need no host; below 1 % is wanted", "load")
def _idle(world: World, shared: Shared) -> Iterator[Case]:
    unit: Unit = "% of a core"
    loads: tuple[_quiet.Load, ...] = ("idle", "hits", "direct")
    for load in loads:
        if load == "direct" and not _evicts(world, _quiet.EVICTING_TIMES):
            continue
        yield Case({"load": load}, Task("gpufs", unit, alone(_quiet.samples, world, load)))


@benchmark("grep", "gpufs grep, whole words of a dictionary in source text; the twin on so many cores", "words")
def _grep_tree(world: World, shared: Shared) -> Iterator[Case]:
    # 58,000 is the dictionary of the GPUfs papers.
    for wanted in _counts(world, (5_000, 58_000), (500,)):
        text = _grep.Text(world, wanted)
        twins = [
            Task(f"twin, {cores} cores", "GB/s", _grep.search(text, device="cpu", cores=cores))
            for cores in sorted({min(8, world.threads), min(16, world.threads)})
        ]
        yield Case(
            {"where": world.device, "words": len(text.words)},
            Task("gpufs", "GB/s", _grep.search(text, device=world.device)),
            twins[-1],
            None,
            (
                *twins[:-1],
                Task("rg -w", "GB/s", _grep.ripgrep(world, text, "-w")),
                Task("rg without -w", "GB/s", _grep.ripgrep(world, text)),
            ),
        )


GROUPS: Final[dict[str, tuple[str, ...]]] = {"apps": ("grep", "matvec", "matmul", "search", "collage")}
"""Names for several benchmarks: the applications, beside programs that do without gpufs."""

__all__ = ["BENCHMARKS", "GROUPS", "Benchmark"]
