"""Benchmarks of the library. Each is a function that returns its cases without running them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal

from gpufs.bench import _arrays, _peers, _quiet, _writing
from gpufs.bench._alone import alone
from gpufs.bench._measure import Case, Task, Unit
from gpufs.bench._registry import (
    KIB,
    MIB,
    PAGE,
    benchmark,
    copy_engine_task,
    counts,
)
from gpufs.bench._sources import (
    DISK_CHUNK,
    GATHERED_BYTES_MAX,
    SEQUENTIAL_VARIANTS,
    Shared,
    first_touch,
    hits,
    host_reopens,
    host_small_files,
    raw_pull,
    raw_read,
    read_then_copy,
    reopens,
    small_files,
    walk,
)
from gpufs.bench._tasks import (
    cache_has_enough_frames,
    disk_task,
    first_touch_task,
    fitting,
    host_copy_task,
    host_writes_task,
    kvikio_tasks,
    pipeline_task,
    pull_task,
    worker_counts,
)
from gpufs.bench._world import World

SEQUENTIAL_PAGES: Final = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
QUICK_SEQUENTIAL_PAGES: Final = (4 * KIB, 64 * KIB)

KVIKIO_READS: Final = 1 << 15  # one page each; Python alone takes about ten microseconds for a read


# --- The machine ---


@benchmark("limits", "What the machine gives without a file system", "chunk")
def _limits(world: World, shared: Shared) -> Iterator[Case]:
    def line(what: str, chunk: int, task: Task) -> Case:
        return Case({"what": what, "chunk": chunk}, None, task)

    yield line("pinned memory, copy engine", 16 * MIB, copy_engine_task(world, shared))
    for chunk in (512, PAGE, 64 * KIB):
        yield line("registered file pages, pulled", chunk, pull_task(world, shared, chunk))
    for chunk in (PAGE, 16 * KIB):
        task = Task("raw reads", "GB/s", raw_read(world, walk(world, "map", chunk)))
        yield line("device memory, read at random", chunk, task)
    for threads in worker_counts(world):
        yield line(
            "page cache, memcpy from mapping", PAGE, host_copy_task(world, shared, PAGE, threads)
        )
        yield line("page cache, pread", PAGE, host_copy_task(world, shared, PAGE, threads, "pread"))
    yield line("page cache, pread", MIB, host_copy_task(world, shared, MIB, world.threads, "pread"))
    yield line(
        "disk, sequential", DISK_CHUNK, disk_task(world, shared, DISK_CHUNK, 8, random=False)
    )
    yield line("disk, random", PAGE, disk_task(world, shared, PAGE, 64, random=True))


# --- First touches ---


@benchmark(
    "sequential",
    "Whole file, front to back, extents registered (TOCS 2014, figures 7 and 8)",
    "page",
)
def _sequential(world: World, shared: Shared) -> Iterator[Case]:
    for page in fitting(world, counts(world, SEQUENTIAL_PAGES, QUICK_SEQUENTIAL_PAGES)):
        for variant in SEQUENTIAL_VARIANTS:
            yield Case(
                {"page": page, "variant": variant.name},
                first_touch_task(world, shared, page, variant),
                copy_engine_task(world, shared),
                0.95,
                (
                    pull_task(world, shared, page, random=False),
                    shared.task(
                        ("read then copy",),
                        lambda: Task("pread + one copy", "GB/s", read_then_copy(world)),
                    ),
                    pipeline_task(world, shared, min(world.threads, 16)),
                    shared.task(
                        ("cufile",), lambda: Task("cuFile", "GB/s", _peers.cufile_read(world))
                    ),
                    *kvikio_tasks(world, shared),
                ),
            )


@benchmark(
    "breakdown",
    "Whole-file read: all, transfer alone, cache alone (TOCS 2014, figure 8)",
    "page",
)
def _breakdown(world: World, shared: Shared) -> Iterator[Case]:
    for page in fitting(world, counts(world, SEQUENTIAL_PAGES, QUICK_SEQUENTIAL_PAGES)):
        yield Case(
            {"page": page},
            replace(first_touch_task(world, shared, page, SEQUENTIAL_VARIANTS[0]), unit="ms/GB"),
            replace(pull_task(world, shared, page, random=False), unit="ms/GB"),
            None,
            (
                Task(
                    "hits", "ms/GB", hits(world, walk(world, "map", page, random=False), page=page)
                ),
            ),
        )


@benchmark("contact", "Whole file on first contact, registration or staging included", "workers")
def _contact(world: World, shared: Shared) -> Iterator[Case]:
    for workers in worker_counts(world):
        for variant in SEQUENTIAL_VARIANTS:
            yield Case(
                {"state": "hot", "workers": workers, "variant": variant.name},
                Task(
                    "gpufs",
                    "GB/s",
                    first_touch(
                        world,
                        variant.walk(world, PAGE),
                        registered=False,
                        variant=variant,
                        workers=workers,
                    ),
                ),
                pipeline_task(world, shared, workers),
                1.0,
                (copy_engine_task(world, shared),),
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
            pipeline_task(world, shared, workers, "dropped"),
            1.0,
            (disk_task(world, shared, DISK_CHUNK, 8, random=False),),
        )


@benchmark("random", "Random pages, each once, extents registered (TOCS 2014, figure 9)", "page")
def _random(world: World, shared: Shared) -> Iterator[Case]:
    pages = counts(
        world, (512, 2 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB), (512, 4 * KIB, 64 * KIB)
    )
    for page in fitting(world, pages):
        gathered = min(world.file_bytes, GATHERED_BYTES_MAX) // page
        peers = (
            Task("np.memmap[rows] + copy", "GB/s", _peers.memmap_gather(world, page, gathered)),
            Task("torch UVA gather", "GB/s", _peers.torch_uva_gather(world, page, gathered)),
            Task(
                "KvikIO (16 threads)",
                "GB/s",
                _peers.kvikio_gather(world, page, min(gathered, KVIKIO_READS), 16),
            ),
            host_copy_task(world, shared, page, min(world.threads, 16)),
        )
        yield Case(
            {"page": page},
            Task("gpufs", "GB/s", first_touch(world, walk(world, "map", page), page=page)),
            pull_task(world, shared, page),
            0.97 if page >= PAGE else 0.70,
            peers if page == PAGE else (),
        )


@benchmark("large", "A file larger than the cache: steady eviction", "file / cache")
def _large(world: World, shared: Shared) -> Iterator[Case]:
    for times in counts(world, (2, 4, 16), (4,)):
        cache = world.file_bytes // times
        if not cache_has_enough_frames(world, times):
            continue
        for random in (True, False) if times == 4 else (True,):
            the_walk = walk(world, "map", PAGE, random=random)
            yield Case(
                {"order": "random" if random else "forward", "file / cache": times},
                Task("gpufs", "GB/s", first_touch(world, the_walk, cache=cache)),
                pull_task(world, shared, PAGE, random=random),
                0.95,
            )


@benchmark("staged", "Random 4 KiB pages through host workers, no direct path", "workers")
def _staged(world: World, shared: Shared) -> Iterator[Case]:
    operations = min(world.file_bytes // PAGE, 1 << (16 if world.quick else 20))
    the_walk = walk(world, "map", PAGE, operations=operations)
    for workers in worker_counts(world):
        yield Case(
            {"workers": workers},
            Task(
                "gpufs",
                "GB/s",
                first_touch(world, the_walk, registered=False, pinned=0, workers=workers),
            ),
            host_copy_task(world, shared, PAGE, workers),
            0.90,
        )


@benchmark("blocks", "Random 4 KiB pages: how many blocks of 256 threads saturate", "blocks")
def _blocks(world: World, shared: Shared) -> Iterator[Case]:
    # The same number of pages for each block, so that one block does not take a minute. Powers of
    # two.
    for blocks in counts(world, (1, 2, 4, 8, 16, 32, 64, 256), (1, 8, 64)):
        operations = min(world.file_bytes // PAGE, blocks << 14)
        yield Case(
            {"blocks": blocks},
            Task(
                "gpufs",
                "GB/s",
                first_touch(world, walk(world, "map", PAGE, operations=operations, blocks=blocks)),
            ),
            pull_task(world, shared, PAGE, blocks=blocks, operations=operations),
            0.90,
        )


@benchmark("latency", "One fault at a time: a single warp, random 4 KiB pages", "path")
def _latency(world: World, shared: Shared) -> Iterator[Case]:
    operations = min(world.file_bytes // PAGE, 1024 if world.quick else 4096)
    alone = walk(world, "map", PAGE, operations=operations, blocks=1, threads=32)
    pull = Task("raw pulls", "us", raw_pull(world, alone))
    yield Case({"path": "direct"}, Task("gpufs", "us", first_touch(world, alone)), pull)
    yield Case(
        {"path": "staged"},
        Task("gpufs", "us", first_touch(world, alone, registered=False, pinned=0)),
        pull,
    )
    yield Case(
        {"path": "hit"},
        Task("gpufs", "us", hits(world, alone, page=PAGE)),
        Task("raw reads", "us", raw_read(world, alone)),
    )


# --- Hits ---


@benchmark("hits", "Reading from the cache, against page and chunk (TOCS 2014, figure 10)", "chunk")
def _hits(world: World, shared: Shared) -> Iterator[Case]:
    wanted = (
        *(
            (access, page, page)
            for access in ("map", "map_each")
            for page in (512, 4 * KIB, 16 * KIB, 64 * KIB)
        ),
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
                lambda access=access, the_walk=the_walk: Task(
                    "raw reads", "GB/s", raw_read(world, the_walk)
                ),  # type: ignore[misc]
            ),
            0.90,
        )


@benchmark("gather", "Records picked at random from the cache", "record")
def _gather(world: World, shared: Shared) -> Iterator[Case]:
    operations_max = 1 << (20 if world.quick else 23)
    records: list[tuple[Literal["view", "view_several", "gather"], int, int]] = [
        *(("view", PAGE, record) for record in counts(world, (8, 64, 256, 1024, 4096), (8, 64))),
        *(
            ("view_several", page, record)
            for page in (PAGE, 64 * KIB)
            for record in counts(world, (8, 64, 256), (64,))
        ),
        *(
            ("gather", PAGE, record)
            for record in counts(world, (8, 64, 256, 1024, 4096), (64, 1024))
        ),
    ]
    for access, page, record in records:
        operations = min(world.file_bytes // record, operations_max, GATHERED_BYTES_MAX // record)
        the_walk = walk(world, access, record, operations=operations)
        peers: tuple[Task, ...] = ()
        if access == "gather":
            peers = (
                Task(
                    "torch UVA gather", "GB/s", _peers.torch_uva_gather(world, record, operations)
                ),
            )
        yield Case(
            {"access": access, "page": page, "record": record},
            Task("gpufs", "GB/s", hits(world, the_walk, page=page)),
            Task("raw reads", "GB/s", raw_read(world, the_walk)),
            0.50,
            peers,
        )


@benchmark(
    "arrays",
    "From Python: rows of an array by an index, a whole file, a small call",
    "record",
)
def _array(world: World, shared: Shared) -> Iterator[Case]:
    for record in counts(world, (512, PAGE), (512, PAGE)):
        operations = min(1 << 20, world.file_bytes // _arrays.CACHE_PART // record)
        peers = (
            Task("np.memmap[rows] + copy", "GB/s", _peers.memmap_gather(world, record, operations)),
            Task("torch UVA gather", "GB/s", _peers.torch_uva_gather(world, record, operations)),
            Task(
                "KvikIO (16 threads)",
                "GB/s",
                _peers.kvikio_gather(world, record, min(operations, KVIKIO_READS), 16),
            ),
        )
        yield Case(
            {"what": "rows", "record": record},
            Task("gpufs", "GB/s", _arrays.rows(world, record, operations)),
            pull_task(world, shared, record, operations=operations),
            0.90 if record >= PAGE else 0.80,
            peers,
        )
        yield Case(
            {"what": "the same again", "record": record},
            Task("gpufs", "GB/s", _arrays.rows(world, record, operations, again=True)),
            Task(
                "torch.index_select", "GB/s", _arrays.torch_index_select(world, record, operations)
            ),
            0.70 if record >= PAGE else None,
        )
    yield Case(
        {"what": "whole file", "record": world.file_bytes},
        Task("gpufs", "GB/s", _arrays.whole_file(world)),
        copy_engine_task(world, shared),
        0.90,
    )
    yield Case(
        {"what": "small call", "record": PAGE}, Task("gpufs", "us", _arrays.small_calls(world))
    )


@benchmark("hotspot", "All blocks read the same few pages", "pages")
def _hotspot(world: World, shared: Shared) -> Iterator[Case]:
    operations = world.file_bytes // PAGE
    everywhere = Task("gpufs, all pages", "GB/s", hits(world, walk(world, "map", PAGE), page=PAGE))
    for pages in counts(world, (1, 16, 256), (1, 256)):
        few = walk(world, "map", PAGE, span=pages * PAGE, operations=operations)
        yield Case(
            {"pages": pages},
            Task("gpufs", "GB/s", hits(world, few, page=PAGE)),
            everywhere,
            1.0,
            (Task("raw reads", "GB/s", raw_read(world, few)),),
        )


# --- Writing ---


@benchmark(
    "writing", "Writing: to cached pages, appended records, whole files without sync", "workers"
)
def _write(world: World, shared: Shared) -> Iterator[Case]:
    for chunk in counts(world, (512, 4 * KIB, 16 * KIB), (4 * KIB,)):
        yield Case(
            {"what": "cached", "chunk": chunk},
            Task("gpufs", "GB/s", _writing.cached(world, chunk)),
            Task("raw stores", "GB/s", _writing.raw(world, chunk)),
            0.70 if chunk >= PAGE else None,
        )
    for record in counts(world, (100, 1000), (100,)):
        yield Case(
            {"what": "append", "chunk": record},
            Task("gpufs", "M/s", _writing.appends(world, record)),
        )
    ways: tuple[_writing.How, ...] = ("new", "overwritten")
    for workers in counts(world, (1, 8), (1,)):
        for how in ways:
            for chunk in counts(world, (64 * KIB, PAGE), (64 * KIB,)):
                yield Case(
                    {"what": f"file, {how}", "chunk": chunk, "workers": workers},
                    Task("gpufs", "GB/s", _writing.file_by_gpufs(world, how, workers, chunk)),
                    host_writes_task(world, shared, how, workers, "pwrite"),
                    0.90,
                    (
                        host_writes_task(world, shared, how, workers, "pwrite from memory"),
                        host_writes_task(world, shared, how, workers, "mapping"),
                    ),
                )


# --- Opens, idle mounts ---


@benchmark("small_files", "Open, read and close small files, 14 KiB on average", "workers")
def _small_files(world: World, shared: Shared) -> Iterator[Case]:
    for workers in counts(world, (4, 16), (16,)):
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
        Task(
            f"host open + close, {threads} threads", "M/s", host_reopens(world, operations, threads)
        ),
    )


@benchmark(
    "idle",
    "Host CPU of an idle mount, and under kernels without requests (wanted: < 1 %)",
    "load",
)
def _idle(world: World, shared: Shared) -> Iterator[Case]:
    unit: Unit = "% of a core"
    loads: tuple[_quiet.Load, ...] = ("idle", "hits", "direct")
    for load in loads:
        if load == "direct" and not cache_has_enough_frames(world, _quiet.EVICTING_TIMES):
            continue
        yield Case({"load": load}, Task("gpufs", unit, alone(_quiet.samples, world, load)))
