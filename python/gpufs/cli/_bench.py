"""``gpufs bench``."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from gpufs._options import Device
from gpufs.cli._bench_output import Output, table_style
from gpufs.cli._exit_status import FAILED
from gpufs.cli._options import DeviceOption, ProgressOption, given_size
from gpufs.cli._output import complain, is_terminal, write
from gpufs.cli._progress import Steps
from gpufs.cli._signals import saving
from gpufs.sizes import format_size

if TYPE_CHECKING:
    from gpufs import bench

WRONG_DATA: Final = 1
LISTED_WIDTH: Final = 75  # columns of the names in a group


def bench_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Benchmarks or groups, which --list shows. Without any: the library's, in at most "
            "10 minutes. Or: compare A.json B.json, or: plot A.json...",
            show_default=False,
        ),
    ] = None,
    list_them: Annotated[
        bool,
        typer.Option(
            "--list", help="List the benchmarks, how long each takes on a GPU, and the groups."
        ),
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
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and fewer.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Leave out what does not fit into this time. Without NAME: 10.",
            show_default=False,
        ),
    ] = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="What gpufs grep searches; may be given again."),
    ] = None,
    device: DeviceOption = "auto",
    progress: ProgressOption = True,
) -> None:
    """Measure how fast gpufs is on this machine.

    Compares it with the machine's limits and with other ways to read files. Prints a table for each
    benchmark, row by row. An interrupted run keeps its complete rows, also in the files of --json
    and --plot.

    \b
    gpufs bench                                  the library, in at most 10 minutes
    gpufs bench --list                           the benchmarks, and how long each takes
    gpufs bench random hits --json after.json    two of them, with results in a file
    gpufs bench compare before.json after.json   what changed
    gpufs bench plot after.json --plot plots     figures of results

    Exit status: 0, 1 when data that was read was wrong, 2 when something failed.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import bench

    begin = time.monotonic()
    named = names or [bench.TOUR]
    try:
        if list_them:
            write(f"{line}\n".encode() for line in _listed())
            return
        if named[0] == "compare":
            _compare_results(named[1:])
            return
        if named[0] == "plot":
            _plot_results(named[1:], plots)
            return
        chosen = list(
            dict.fromkeys(one for name in named for one in bench.GROUPS.get(name, (name,)))
        )
        for name in chosen:
            if name not in bench.BENCHMARKS:
                raise typer.BadParameter(f"no benchmark {name!r}; --list shows them")
        if plots is not None:
            from gpufs.bench import plots as drawing

            drawing.check()
            Path(plots).mkdir(parents=True, exist_ok=True)
        limit_s = minutes * 60 if minutes is not None else None if names else bench.TOUR_S
        steps = Steps(progress and is_terminal(sys.stderr))
        wrong = _run_benchmarks(
            chosen,
            bench.World.make(
                cast(Device, device),
                file=file,
                size=cast(int | None, size),
                quick=quick,
                tree=tree or bench.default_tree(),
                tell=steps.tell,
                default_max=None if names else bench.TOUR_BYTES,
            ),
            Output(steps, json_file, plots),
            steps,
            None if limit_s is None else (begin, limit_s),
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
    output: Output,
    steps: Steps,
    limit: tuple[float, float] | None,
) -> int:
    """Runs benchmarks, prints and saves the results. Returns the number of wrong bytes.

    ``limit``: when the time began, and how many seconds there are.
    """
    from gpufs import bench

    note = "" if world.device == "cuda" else " (no GPU is measured: this is the CPU device)"
    with saving(output.save_early), steps:
        output.print(
            f"on {world.device_name}{note}, file of {format_size(world.file_bytes)}, "
            f"{world.runs} runs\n{_expectation(names, world, limit and limit[1])}\n\n"
        )
        with world:
            results = bench.run(
                names,
                world,
                deadline=None if limit is None else sum(limit),
                on_progress=lambda p: steps.tell(f"{p.benchmark}: {p.what}", p.done, p.total),
                on_table=output.begin_table,
                on_line=output.add_line,
                on_table_end=output.end_table,
            )
    if results.left_out:
        output.print(
            f"out of time; not, or not completely, measured: {', '.join(results.left_out)}\n"
            "Name them to measure them, or give more --minutes.\n"
        )
    output.save(results)
    return results.wrong_bytes


def _expectation(names: Sequence[str], world: bench.World, limit_s: float | None) -> str:
    """Returns a line about the time that the run will take."""
    from gpufs.bench import _durations

    each = [
        _durations.expected_s(name, world.device, world.quick, world.file_bytes) for name in names
    ]
    if 0.0 in each:
        return "nobody has measured how long this takes"
    seconds, many = sum(each), f"{len(names)} benchmark{'s' if len(names) > 1 else ''}"
    if limit_s is not None and seconds > limit_s:
        return (
            f"{many}, about {_durations.in_words(seconds)}: ends within "
            f"{_durations.in_words(limit_s)}, and leaves out what does not fit"
        )
    return f"{many}, about {_durations.in_words(seconds)}"


def _listed() -> Iterator[str]:
    """Yields the lines of ``--list``."""
    from gpufs import bench
    from gpufs.bench import _durations

    def row(name: str, seconds: float, text: str) -> str:
        return f"{name:<12} {_durations.in_words(seconds):>8}  {text}"

    seconds = {name: bench.expected_s(name, "cuda", False) for name in bench.BENCHMARKS}
    yield f"{'benchmark':<12} {'on a GPU':>8}  what it measures"
    for made in bench.BENCHMARKS.values():
        yield row(made.name, seconds[made.name], made.title)
    yield ""
    yield f"{'group':<12} {'on a GPU':>8}  benchmarks"
    for name, group in bench.GROUPS.items():
        text = "all of them" if len(group) == len(bench.BENCHMARKS) else ", ".join(group)
        first, *others = textwrap.wrap(text, LISTED_WIDTH)
        yield row(name, sum(seconds[one] for one in group), first)
        yield from (f"{'':<23}{other}" for other in others)
    yield ""
    yield "The times are of: " + "; ".join(_durations.machines("cuda"))


def _compare_results(paths: Sequence[str]) -> None:
    from gpufs import bench

    if len(paths) != 2:
        raise typer.BadParameter("compare needs two files of results: compare A.json B.json")
    before, after = (bench.read(Path(path)) for path in paths)
    write([bench.compare(before, after, **table_style()).encode(errors="surrogateescape")])


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
