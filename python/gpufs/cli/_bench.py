"""``gpufs bench``."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from gpufs._options import Device
from gpufs.cli._exit_status import FAILED
from gpufs.cli._options import DeviceOption, ProgressOption, given_size
from gpufs.cli._output import complain, is_terminal, write
from gpufs.cli._progress import Steps
from gpufs.sizes import format_size

if TYPE_CHECKING:
    from gpufs import bench

WRONG_DATA: Final = 1


def bench_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]",
            help="Benchmarks; all without any; apps: the applications. "
            "Or: compare A.json B.json, or: plot A.json...",
        ),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the benchmarks and exit.")
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="F", help="Measure on this file, which an earlier run made, or else this one."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            callback=given_size,
            help="Bytes to use, rounded down to a power of two.",
        ),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="OUT", help="Write the results as JSON.")
    ] = None,
    plots: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="DIR",
            help="Draw the results (needs matplotlib: pip install with the extra bench).",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller and fewer, within a minute.")
    ] = False,
    tree: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="What gpufs grep searches; may be given again."),
    ] = None,
    device: DeviceOption = "auto",
    progress: ProgressOption = True,
) -> None:
    """Measure gpufs beside this machine's limits and beside other ways to read files.

    Prints a table for each benchmark. Exit status: 0, 1 when data that was read was wrong, 2 when
    something failed.
    """
    from gpufs import bench

    chosen = [one for name in names or bench.BENCHMARKS for one in bench.GROUPS.get(name, (name,))]
    try:
        if list_them:
            write(f"{made.name:<12} {made.title}\n".encode() for made in bench.BENCHMARKS.values())
            write(
                f"{name:<12} {', '.join(names_of)}\n".encode()
                for name, names_of in bench.GROUPS.items()
            )
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
            Path(plots).mkdir(parents=True, exist_ok=True)
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
            progress and is_terminal(sys.stderr),
        )
    except (ValueError, ImportError) as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None
    if wrong:
        complain(f"{wrong:,} bytes that were read were wrong")
        raise typer.Exit(WRONG_DATA)


def _run_benchmarks(
    names: Sequence[str],
    world: bench.World,
    json_file: str | None,
    plots: str | None,
    show_progress: bool,
) -> int:
    """Runs benchmarks, prints and saves the results. Returns the number of wrong bytes."""
    from gpufs import bench

    # A file is written after every benchmark, so it is complete even if the run is interrupted. A
    # device or a pipe gets everything at the end.
    growing = json_file is not None and _is_file_or_can_be(json_file)
    note = "" if world.device == "cuda" else " (no GPU is measured: this is the CPU device)"
    write(
        [
            (
                f"on {world.device_name}{note}, file of {format_size(world.file_bytes)}, "
                f"{world.runs} runs\n\n"
            ).encode()
        ]
    )
    with Steps(show_progress) as steps:

        def show(table: bench.Table) -> None:
            with steps.hidden():
                write([bench.show(table, **_table_style()).encode(errors="surrogateescape"), b"\n"])

        world.tell = steps.tell
        with world:
            results = bench.run(
                names,
                world,
                on_progress=lambda p: steps.tell(f"{p.benchmark}: {p.what}", p.done, p.total),
                on_line=(lambda made: replace_file(cast("str", json_file), made.to_json()))
                if growing
                else None,
                on_table=show,
            )
    if json_file is not None and not growing:
        Path(json_file).write_text(results.to_json(), encoding="utf-8")
    if plots is not None:
        from gpufs.bench import plots as drawing

        drawing.draw(results, plots)
    return results.wrong_bytes


def _is_file_or_can_be(name: str) -> bool:
    """Returns whether the name is a file or can be created.

    Raises errors now that would otherwise come after some minutes.
    """
    path = Path(name)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return path.is_file() or not path.exists()


# Errors that mean: the file cannot be replaced, but perhaps written. It is a mount point, or in
# another user's folder.
_NOT_REPLACED: Final = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)


def replace_file(name: str, text: str) -> None:
    """Writes a file, atomically if it can be replaced."""
    from gpufs._output import replacing

    target = Path(name)
    try:
        with replacing(target) as part:
            Path(part).write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno not in _NOT_REPLACED or not target.exists():
            raise OSError(error.errno, error.strerror, name) from error
        with open(name, "w", encoding="utf-8") as out:  # noqa: PTH123
            out.write(text)


def _compare_results(paths: Sequence[str]) -> None:
    from gpufs import bench

    if len(paths) != 2:
        raise typer.BadParameter("compare needs two files of results: compare A.json B.json")
    before, after = (bench.read(Path(path)) for path in paths)
    write([bench.compare(before, after, **_table_style()).encode(errors="surrogateescape")])


def _plot_results(paths: Sequence[str], folder: str | None) -> None:
    from gpufs import bench
    from gpufs.bench import plots

    if not paths or folder is None:
        raise typer.BadParameter(
            "plot needs a file of results, or several of one machine, and a folder: plot A.json "
            "--plot DIR"
        )
    results, *others = (bench.read(Path(path)) for path in paths)
    for other in others:
        results.benchmarks.extend(other.benchmarks)
    write(os.fsencode(path) + b"\n" for path in plots.draw(results, folder))


def _table_style() -> dict[str, Any]:
    """Returns the style of tables: in color and as wide as the terminal, if there is one."""
    terminal = is_terminal(sys.stdout)
    return {"colored": terminal, "width": shutil.get_terminal_size().columns if terminal else None}
