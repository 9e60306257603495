"""The command line, ``gpufs``.

Exit status of ``gpufs grep``, as of grep: 0 when a word was found, 1 when none was, 2 when something went wrong, also
where words were found besides. Of ``gpufs doctor``: 0 when gpufs works here, 1 when something that it needs does not.
Of ``gpufs bench``: 0, 1 when data was wrong, 2 when something failed. Of ``gpufs top``: 0, also after Ctrl-C, which is
how one ends it; 2 when nothing listens, or no longer. Of ``gpufs cat`` and ``gpufs stat``: 0, 1 when a file could not
be read, as cat's; 2 when something else failed. Of ``gpufs matvec``: 0, 2 when something failed. 130 after Ctrl-C of
the others; a reader that goes away ends it quietly, as it ends other tools, by SIGPIPE.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias, cast, get_args

import typer

from gpufs import _core, grep
from gpufs._mount import DEFAULT_METRICS_PORT, Device, Mount, Statistics
from gpufs.sizes import format_size, parse_size

if TYPE_CHECKING:
    from gpufs import bench, cat, linear, top

FOUND: Final = 0
NOTHING_FOUND: Final = 1
FAILED: Final = 2
WRONG_DATA: Final = 1
NOT_ALL_READ: Final = 1
INTERRUPTED: Final = 128 + signal.SIGINT

# Most source files come whole with the answer to their open when a request's memory is this large.
GREP_STAGING: Final = "128KiB"

# Of measurements, some of which take a minute.
STEPS_ESTIMATED_OVER_S: Final = 600

# Typer's error of usage: a class of click's or of its own, by its version.
UsageError: Final[Any] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Files for GPU code.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line with these arguments, or the process's; returns its exit status."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="gpufs", standalone_mode=False)
        if not _flush_output():
            return FAILED
    except UsageError as error:
        # Also when nothing was asked for: then the help has been shown, and there is nothing to say.
        text = " ".join(error.format_message().split())
        if text:
            _complain(text)
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        _complain(_describe(error))
        return FAILED
    except MemoryError:
        _complain(os.strerror(errno.ENOMEM))
        return FAILED
    return status if isinstance(status, int) else 0


def _show_version(wanted: bool) -> None:
    if wanted:
        cuda = _core.built_cuda_version
        built = f"CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "CPU twin only"
        _write([f"gpufs {_core.__version__} ({built})\n".encode()])
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Files for GPU code: read and search files on a GPU, see what this machine supports, or measure it."""


# --- Options of several commands ---


def _device(name: str) -> str:
    if name not in get_args(Device):
        raise typer.BadParameter(f"{name!r} is not one of auto, cpu and cuda")
    return name


def _size(text: str | None) -> int | None:
    """Returns a size given on the command line."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


DeviceOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda", callback=_device, help="Where to run: a GPU, the CPU, or a GPU if there is one."
    ),
]
CacheOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", callback=_size, help="Page cache, such as 8GiB.")
]
PageOption: TypeAlias = Annotated[str, typer.Option(metavar="SIZE", callback=_size, help="Page, from 512 to 2MiB.")]
RootOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="DIR", help="Read nothing outside of this folder; paths are relative to it.")
]
FilesArgument: TypeAlias = Annotated[list[str], typer.Argument(metavar="FILE...", help="Files, no folders.")]


def _mount_to_read(
    device: str, cache: str | None, page: str, root: str | None = None, *, staging: str = "32KiB"
) -> Mount:
    """Mounts as the options say, or says why not and ends with status 2."""
    try:
        return Mount(device=cast(Device, device), cache=cache, page=page, root=root, staging=staging, read_only=True)
    except ValueError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from None


# --- grep ---


@app.command("grep")
def _grep(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, and folders with all below them.")],
    words: Annotated[
        str, typer.Option("-f", "--file", metavar="WORDS", help="File with one word a line; - is standard input.")
    ],
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "4KiB",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="At the end, say on standard error what was done.")
    ] = False,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write what the service did, request by request, for Perfetto to show."),
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Show progress when standard error is a terminal.")
    ] = True,
) -> None:
    """Count how often each word of a dictionary stands in each file.

    Prints lines PATH, WORD and COUNT with tabs between them, ordered by path, then word. Exit status: 0 when a word was
    found, 1 when none was, 2 when something went wrong.
    """
    try:
        dictionary = grep.Dictionary.read("/dev/stdin" if words == "-" else words)
    except ValueError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from None
    with _mount_to_read(device, cache, page, staging=GREP_STAGING) as mount:
        recording = contextlib.nullcontext() if timeline is None else mount.timeline(timeline)
        with recording, _progress_bar(progress and sys.stderr is not None and sys.stderr.isatty()) as show:
            try:
                result = grep.search(mount, dictionary, paths, on_progress=show)
            except KeyboardInterrupt:
                if show is not None:
                    show(None)
                # Not through close(), which would wait for the kernels: the driver ends them with the process.
                os._exit(INTERRUPTED)
        report = _Report(mount, result)
    for failure in result.failures:
        _complain(_describe(failure))
    if as_json:
        _write(report.json_pieces())
    else:
        _write(result.lines())
    if summary:
        _note("\n".join(report.summary()))
    if result.failures:
        raise typer.Exit(FAILED)
    raise typer.Exit(FOUND if len(result) else NOTHING_FOUND)


class _Report:
    """What is to be told of a search once its mount is closed."""

    def __init__(self, mount: Mount, result: grep.Result) -> None:
        self.result = result
        self.device = mount.device
        self.device_name = mount.device_name
        self.direct_path = mount.direct_path
        self.statistics: Statistics = mount.stats()

    @property
    def gb_per_s(self) -> float:
        return self.result.bytes / self.result.seconds / 1e9 if self.result.seconds else 0.0

    def json_pieces(self) -> Iterator[bytes]:
        r"""Yields one JSON object: ``matches``, which may be many, piece by piece at its end.

        ``device``, ``device_name``, ``direct_path``: as of :class:`gpufs.Mount`. ``files``, ``bytes``, ``seconds``: of
        the search; ``gb_per_s``. ``words_found``: different ones; ``occurrences``. ``binary``: paths of files with a
        NUL byte, which were searched up to it at most. ``failures``: objects with ``path``, ``errno`` and ``error``.
        ``statistics``: as :meth:`gpufs.Mount.stats` gives them. ``matches``: objects with ``path``, ``word`` and
        ``count``. Bytes of paths and words that are no UTF-8 become lone surrogates (``"\udcff"``), as Python's
        os.fsdecode makes them.
        """
        result = self.result
        head: dict[str, Any] = {
            "version": _core.__version__,
            "device": self.device,
            "device_name": self.device_name,
            "direct_path": self.direct_path,
            "files": result.files,
            "bytes": result.bytes,
            "seconds": result.seconds,
            "gb_per_s": self.gb_per_s,
            "words_found": result.words_found,
            "occurrences": result.occurrences,
            "binary": result.binary,
            "failures": [
                {"path": failure.filename, "errno": failure.errno, "error": failure.strerror}
                for failure in result.failures
            ],
            "statistics": self.statistics,
        }
        yield json.dumps(head)[:-1].encode() + b', "matches": ['
        matches = iter(result)
        separator = ""
        while piece := list(itertools.islice(matches, grep.MATCHES_AT_ONCE)):
            entries = [{"path": match.path, "word": match.word, "count": match.count} for match in piece]
            yield f"{separator}{json.dumps(entries)[1:-1]}".encode()
            separator = ", "
        yield b"]}\n"

    def summary(self) -> Iterator[str]:
        """Yields lines for people."""
        result, counts = self.result, self.statistics
        yield f"ran on    {self.device_name}"
        yield f"searched  {result.files:,} files, {format_size(result.bytes)}"
        yield f"found     {result.words_found:,} words, {result.occurrences:,} times, in {len(result):,} lines"
        if result.failures:
            yield f"not read  {len(result.failures):,} files or folders"
        if result.binary:
            yield f"binary    {len(result.binary):,} files, searched up to their first NUL byte at most"
        yield f"time      {result.seconds:.3f} s, {self.gb_per_s:.2f} GB/s"
        yield from _cache_lines(counts, self.direct_path)


def _cache_lines(counts: Statistics, direct_path: str) -> Iterator[str]:
    hits = counts["hits"] + counts["minor_faults"]
    yield (
        f"cache     {hits:,} hits; misses: {counts['direct_loads']:,} loaded directly, "
        f"{counts['bulk_loads']:,} in runs, {counts['staged_loads']:,} staged, "
        f"{counts['open_loads']:,} with the open"
    )
    if direct_path != "on":
        yield f"staged    all loads: {direct_path}"


@contextlib.contextmanager
def _progress_bar(wanted: bool) -> Iterator[Callable[[grep.Progress | None], None] | None]:
    """Gives what a search calls with its progress, and None to take the bar away; or None where no bar is wanted."""
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("listing", total=None)

    def show(progress: grep.Progress | None) -> None:
        if progress is None:
            bar.stop()
        elif progress.files_total:
            text = f"{progress.files_done:,} of {progress.files_total:,} files"
            # A file that grows while it is read must not carry the bar beyond its end.
            total = max(progress.bytes_total, progress.bytes_done)
            bar.update(task, description=text, completed=progress.bytes_done, total=total)

    with bar:
        yield show


# --- cat ---


@app.command("cat")
def _cat(
    files: FilesArgument,
    offset: Annotated[
        str, typer.Option(metavar="SIZE", callback=_size, help="Of each file, leave out so many bytes at its start.")
    ] = "0",
    count: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", callback=_size, help="Of each file, no more than these.")
    ] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "4KiB",
    root: RootOption = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="At the end, print time and counters on standard error.")
    ] = False,
) -> None:
    """Write files to standard output, read by kernels through the cache.

    It shows what kernels see of a file, and with --stats how fast and by which path they get it (gpufs cat --stats FILE
    > /dev/null). For anything else, cat is simpler. Exit status: 0, 1 when a file could not be read, 2 when something
    else failed.
    """
    from gpufs import cat

    first, wanted = cast(int, offset), cast("int | None", count)
    tally = cat.Tally()
    start = time.perf_counter()
    failed = False
    with _mount_to_read(device, cache, page, root) as mount:
        for path in files:
            try:
                with mount.open(path) as file:
                    for piece in cat.pieces(file, first, wanted, tally=tally):
                        _write([piece])
            except OSError as error:
                _complain(_describe(error))
                failed = True
        if stats:
            _note("\n".join(_cat_lines(mount, tally, time.perf_counter() - start)))
    raise typer.Exit(NOT_ALL_READ if failed else 0)


def _cat_lines(mount: Mount, tally: cat.Tally, seconds: float) -> Iterator[str]:
    counts = mount.stats()
    speed = tally.bytes / tally.seconds / 1e9 if tally.seconds else 0.0
    yield f"ran on    {mount.device_name}"
    yield f"read      {tally.files:,} files, {tally.bytes:,} bytes"
    yield f"time      {tally.seconds:.3f} s to read, {speed:.2f} GB/s; {seconds:.3f} s with mounting and writing"
    yield from _cache_lines(counts, mount.direct_path)
    for name, value in counts.items():
        if value and isinstance(value, int):
            yield f"{name} {value}"


# --- matvec ---


@app.command("matvec")
def _matvec(
    matrix: Annotated[str, typer.Argument(metavar="MATRIX", help="A .npy file, or a raw one with --shape.")],
    vector: Annotated[str, typer.Argument(metavar="VECTOR", help="As many numbers as the matrix has columns.")],
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="OUT", help="The product, in float32; .npy if its name ends so.")
    ],
    shape: Annotated[
        str | None, typer.Option(metavar="ROWSxCOLUMNS", help="Of a raw matrix; a vector is raw then, too.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="float32|bfloat16", help="Of raw files.")] = "float32",
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "64KiB",
    stats: Annotated[
        bool, typer.Option("--stats", help="At the end, print time and counters on standard error.")
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Show progress when standard error is a terminal.")
    ] = True,
) -> None:
    """Multiply a matrix file with a vector file, into a file.

    The matrix may be larger than the GPU's memory. OUT is there when all of it is; until then what was there before.
    Exit status: 0, 2 when something failed.
    """
    from gpufs import linear

    sizes = None if shape is None else _matrix_shape(shape)
    if dtype not in ("float32", "bfloat16"):
        raise typer.BadParameter(f"{dtype!r} is not one of float32 and bfloat16")
    with Mount(device=cast(Device, device), cache=cache, page=page) as mount:
        with _loading_bar(mount, progress and sys.stderr is not None and sys.stderr.isatty()):
            try:
                kind = None if sizes is None else dtype
                result = linear.matvec(mount, matrix, vector, out, dtype=kind, shape=sizes, alone=True)
            except (TypeError, ValueError) as error:
                _complain(str(error))
                raise typer.Exit(FAILED) from None
        if stats:
            _note("\n".join(_product_lines(mount, result)))


def _matrix_shape(text: str) -> tuple[int, int]:
    numbers = text.lower().split("x")
    if len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise typer.BadParameter(f"a shape is two numbers, as 1000x512, not {text!r}")
    return int(numbers[0]), int(numbers[1])


def _product_lines(mount: Mount, result: linear.Result) -> Iterator[str]:
    speed = result.bytes / result.seconds / 1e9 if result.seconds else 0.0
    yield f"ran on    {mount.device_name}"
    yield f"matrix    {result.rows:,} x {result.columns:,}, {format_size(result.bytes)}"
    yield f"time      {result.seconds:.3f} s, {speed:.2f} GB/s"
    yield from _cache_lines(mount.stats(), mount.direct_path)


@contextlib.contextmanager
def _loading_bar(mount: Mount, wanted: bool) -> Iterator[None]:
    """Shows, meanwhile, how much a mount has loaded."""
    if not wanted:
        yield
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TimeElapsedColumn, TransferSpeedColumn

    columns = (SpinnerColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeElapsedColumn())
    ended = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def follow() -> None:
            while not ended.wait(0.1):
                counts = mount.stats()
                bar.update(task, completed=counts["direct_bytes"] + counts["staged_bytes"] + counts["open_bytes"])

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


# --- stat ---


@app.command("stat")
def _stat(
    files: FilesArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "4KiB",
    root: RootOption = None,
) -> None:
    """Show what kernels are told of files: size, mode, times, inode; of .npy and .safetensors files the arrays too.

    Exit status: 0, 1 when a file could not be read or is not what its name says, 2 when something else failed.
    """
    from gpufs import stat

    found: list[stat.Description] = []
    failures: list[dict[str, Any]] = []

    def fail(text: str, path: str, number: int | None, error: str) -> None:
        _complain(text)
        failures.append({"path": path, "errno": number, "error": error})

    with _mount_to_read(device, cache, page, root) as mount:
        where = mount.device
        for path in files:
            try:
                made = stat.describe(mount, path)
            except OSError as error:
                fail(_describe(error), path, error.errno, error.strerror or str(error))
                continue
            found.append(made)
            if not as_json:
                _write([os.fsencode("".join(f"{line}\n" for line in stat.lines(made)))])
            if made.error is not None:
                fail(made.error, path, None, made.error.removeprefix(f"{path}: "))
    if as_json:
        head = {"version": _core.__version__, "device": where, "files": [made.to_json() for made in found]}
        _write([json.dumps(head | {"failures": failures}, indent=2).encode() + b"\n"])
    raise typer.Exit(NOT_ALL_READ if failures else 0)


# --- doctor ---


@app.command("doctor")
def _doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what this machine supports and lacks, and test that gpufs works.

    Exit status: 0 when gpufs works here, be it on the CPU only; 1 when something that it needs does not.
    """
    from gpufs import doctor

    report = doctor.examine()
    if as_json:
        _write([json.dumps(report.to_json(), indent=2).encode() + b"\n"])
    else:
        colored = sys.stdout is not None and sys.stdout.isatty()
        lines = [*_doctor_lines(doctor.format_report(report), colored), "", doctor.conclude(report)]
        _write([os.fsencode("\n".join(lines)) + b"\n"])
    raise typer.Exit(0 if report.usable else 1)


def _doctor_lines(findings: Iterable[tuple[str, str, str]], colored: bool) -> Iterator[str]:
    colors = {"ok": "green", "info": "blue", "warn": "yellow", "fail": "red"}
    for level, text, advice in findings:
        mark = f"{level:<5}"
        yield f"{typer.style(mark, fg=colors[level]) if colored else mark} {text}"
        if advice:
            yield f"{'':<5}   -> {advice}"


# --- bench ---


@app.command("bench")
def _bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]", help="Benchmarks; all without any. Or: compare A.json B.json, or: plot A.json."
        ),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the benchmarks and exit.")] = False,
    file: Annotated[
        str | None, typer.Option(metavar="F", help="Measure on this file, which an earlier run made, or else this one.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", callback=_size, help="Bytes to use, rounded down to a power of two."),
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="OUT", help="Write the results as JSON.")] = None,
    plots: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="DIR", help="Draw the results (needs matplotlib: pip install with the extra bench)."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and fewer, within a minute.")] = False,
    tree: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="What gpufs grep searches; may be given again.")
    ] = None,
    device: DeviceOption = "auto",
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Show progress when standard error is a terminal.")
    ] = True,
) -> None:
    """Measure gpufs beside this machine's limits and beside other ways to read files.

    Prints a table for each benchmark. Exit status: 0, 1 when data that was read was wrong, 2 when something failed.
    """
    from gpufs import bench

    chosen = names or list(bench.BENCHMARKS)
    try:
        if list_them:
            _write(f"{made.name:<12} {made.title}\n".encode() for made in bench.BENCHMARKS.values())
            return
        if chosen[0] == "compare":
            _compare_results(chosen[1:])
            return
        if chosen[0] == "plot":
            _plot_results(chosen[1:], plots)
            return
        for name in chosen:
            if name not in bench.BENCHMARKS:
                raise typer.BadParameter(f"no benchmark {name!r}; --list shows them")
        if plots is not None:
            from gpufs.bench import plots as drawing

            drawing.check()
        wrong = _run_benchmarks(
            chosen,
            bench.World.make(
                cast(Device, device),
                file=file,
                size=cast(int | None, size),
                quick=quick,
                tree=tree or bench.default_tree(),
                tell=lambda _text: None,
            ),
            json_file,
            plots,
            progress and sys.stderr is not None and sys.stderr.isatty(),
        )
    except (ValueError, ImportError) as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from None
    if wrong:
        _complain(f"{wrong:,} bytes that were read were wrong")
        raise typer.Exit(WRONG_DATA)


def _run_benchmarks(
    names: Sequence[str], world: bench.World, json_file: str | None, plots: str | None, show_progress: bool
) -> int:
    """Runs, prints and keeps; returns how many bytes were wrong."""
    from gpufs import bench

    # A file is there from the first line on, and whole if the run is cut off; a device or a pipe gets all at the end.
    growing = json_file is not None and _is_file_or_can_be(json_file)
    twin = "" if world.device == "cuda" else " (no GPU is measured: this is the CPU twin)"
    _write([f"on {world.device_name}{twin}, file of {format_size(world.file_bytes)}, {world.runs} runs\n\n".encode()])
    with _Steps(show_progress) as steps:

        def show(table: bench.Table) -> None:
            with steps.hidden():
                _write([bench.show(table, **_table_style()).encode(errors="surrogateescape"), b"\n"])

        world.tell = steps.tell
        with world:
            results = bench.run(
                names,
                world,
                on_progress=lambda p: steps.tell(f"{p.benchmark}: {p.what}", p.done, p.total),
                on_line=(lambda made: _replace(cast("str", json_file), made.to_json())) if growing else None,
                on_table=show,
            )
    if json_file is not None and not growing:
        Path(json_file).write_text(results.to_json(), encoding="utf-8")
    if plots is not None:
        from gpufs.bench import plots as drawing

        drawing.draw(results, plots)
    return results.wrong_bytes


def _is_file_or_can_be(name: str) -> bool:
    """Raises at once what would be known after some minutes otherwise."""
    path = Path(name)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return path.is_file() or not path.exists()


# Why a file cannot be replaced that can perhaps be written: it is mounted alone, or in a folder of somebody else.
_NOT_REPLACED: Final = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)


def _replace(name: str, text: str) -> None:
    """Writes a file, whole or not at all, where it can be replaced."""
    from gpufs._output import replacing

    target = Path(name).resolve()
    try:
        with replacing(target) as part:
            Path(part).write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno not in _NOT_REPLACED or not target.exists():
            raise OSError(error.errno, error.strerror, name) from error
        with open(name, "w", encoding="utf-8") as out:  # noqa: PTH123 - its error names the file as it was given
            out.write(text)


def _compare_results(paths: Sequence[str]) -> None:
    from gpufs import bench

    if len(paths) != 2:
        raise typer.BadParameter("compare needs two files of results: compare A.json B.json")
    before, after = (bench.read(Path(path)) for path in paths)
    _write([bench.compare(before, after, **_table_style()).encode(errors="surrogateescape")])


def _plot_results(paths: Sequence[str], folder: str | None) -> None:
    from gpufs import bench
    from gpufs.bench import plots

    if len(paths) != 1 or folder is None:
        raise typer.BadParameter("plot needs a file of results and a folder: plot A.json --plot DIR")
    _write(os.fsencode(path) + b"\n" for path in plots.draw(bench.read(Path(paths[0])), folder))


def _table_style() -> dict[str, Any]:
    """Returns how tables are shown: as wide as a terminal, and in color there."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return {"colored": terminal, "width": shutil.get_terminal_size().columns if terminal else None}


class _Steps:
    """A bar of measurements, done and to do; nothing where none is wanted."""

    def __init__(self, wanted: bool) -> None:
        self._bar: Any = None
        if not wanted:
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left, about:"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            speed_estimate_period=STEPS_ESTIMATED_OVER_S,
        )
        self._task = self._bar.add_task("preparing", total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=done, total=total)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Takes the bar away while a table is written, maybe to the same terminal."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()


# --- top ---


@app.command("top")
def _top(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help=f"Where mounts serve their metrics: a URL, or a port of this host; {DEFAULT_METRICS_PORT} without it.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option("-i", "--interval", metavar="SECONDS", min=0.05, max=86400, help="Time between updates.")
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option("-n", "--count", metavar="N", min=1, help="End after so many updates.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each update.")] = False,
) -> None:
    """Show what mounts of a running program do: hits, faults, bytes, latency, errors.

    The program serves them: mount.serve_metrics() in Python. Shows a table in a terminal, else prints a line for each
    update. Exit status: 0, also after Ctrl-C; 2 when nothing listens there, or it ends.
    """
    from gpufs import top

    try:
        url = top.locate(where)
        updates = itertools.islice(top.updates(url, interval), count)
        if as_json:
            for update in updates:
                _write([json.dumps(update.to_json()).encode() + b"\n"])
        elif sys.stdout is not None and sys.stdout.isatty():
            _show_live(updates, url)
        else:
            for update in updates:
                _write([top.line(update).encode() + b"\n"])
    except KeyboardInterrupt:
        return
    except ValueError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from None


def _show_live(updates: Iterable[top.Update], url: str) -> None:
    """Shows each update in the place of the one before; the last stays."""
    from rich.live import Live
    from rich.text import Text

    from gpufs import top

    with Live(Text(f"{url}  ..."), auto_refresh=False) as live:
        for update in updates:
            live.update(top.table(update, url), refresh=True)


# --- completion ---


@app.command("completion")
def _completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")],
) -> None:
    """Print a script that makes a shell complete gpufs commands and options.

    It changes nothing. For bash, put this into ~/.bashrc: eval "$(gpufs completion bash)". For zsh, the same into
    ~/.zshrc. For fish: gpufs completion fish > ~/.config/fish/completions/gpufs.fish
    """
    from gpufs import bench, completion

    if shell not in completion.SHELLS:
        raise typer.BadParameter(f"{shell!r} is not one of bash, zsh and fish")
    words = {"bench": [*bench.BENCHMARKS, "compare", "plot"], "completion": list(completion.SHELLS)}
    _write([completion.SHELLS[shell](*completion.describe(typer.main.get_command(app), words)).encode()])


# --- Output ---


def _write(pieces: Iterable[bytes | memoryview]) -> None:
    """Writes to standard output, or says why not and ends with status 2."""
    if sys.stdout is None:
        _complain("standard output is closed")
        raise typer.Exit(FAILED)
    output: IO[bytes] = sys.stdout.buffer
    try:
        output.writelines(pieces)
    except OSError as error:
        _give_up_output(error)
        raise typer.Exit(FAILED) from None
    if not _flush_output():
        raise typer.Exit(FAILED)


def _flush_output() -> bool:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _give_up_output(error)
        return False
    return True


def _give_up_output(error: OSError) -> None:
    _complain(f"standard output: {error.strerror}")
    # What is still in the buffer must not be tried again, and reported again, when the interpreter ends.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _complain(text: str) -> None:
    _note(f"gpufs: {text}")


def _note(text: str) -> None:
    """Writes to standard error, with the bytes of paths as they are."""
    if sys.stderr is not None:
        sys.stderr.flush()
        sys.stderr.buffer.write(os.fsencode(f"{text}\n"))
        sys.stderr.buffer.flush()


def _describe(error: OSError) -> str:
    text = error.strerror or str(error)
    return text if error.filename is None else f"{os.fsdecode(error.filename)}: {text}"
