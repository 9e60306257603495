"""``gdev bench``: the measurements of Gdev's paper (ATC 2012), with its figures; and gdev's rivals.

Exit status: 0; 1 if a program failed or its result was wrong, or after another error; 2 after wrong
arguments.
"""

from __future__ import annotations

import enum
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from gpufs.sizes import parse_size

from gdev.bench import _copies, _dataflow, _launches, _micro, _rivals, _search
from gdev.bench._results import Results, gpus, markdown

app: Final = typer.Typer(no_args_is_help=True, help="Measure programs with and without gdev.")


_PARTS: Final = {
    "micro": _micro.parts,
    "copies": _copies.parts,
    "dataflow": _dataflow.parts,
    "launches": _launches.parts,
    "search": _search.parts,
}


class Graph(enum.StrEnum):
    """A dataflow."""

    TREE = "tree"
    RECTANGLE = "rectangle"


Json = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers, and the machine, to this file.")
]
Runs = Annotated[int, typer.Option(min=1, help="How often each program runs, of each kind.")]
VgpuName = Annotated[str, typer.Option(help="The virtual GPU of the programs under gdev.")]


@app.command("micro")
def micro_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Microprograms, or " + ", ".join(_micro.OTHERS) + "; default: all."),
    ] = None,
    runs: Runs = 4,
    repeats: Annotated[
        int, typer.Option(min=1, help="Least blocks of a run: two repeats of each kind.")
    ] = 5,
    vgpu: VgpuName = "default",
    json_file: Json = None,
) -> None:
    """Measure the microprograms of table 1, alone and under gdev in turn (figure 6)."""
    chosen = [name.upper() for name in names or _micro.NAMES]
    for name in chosen:
        if name not in _micro.NAMES:
            raise ValueError(f"there is no such microprogram: {name} ({', '.join(_micro.NAMES)})")
    with Results("micro", {"runs": runs, "repeats": repeats, "vgpu": vgpu}, json_file) as results:
        end(_micro.measure(chosen, runs, repeats, vgpu, results))


@app.command("launches")
def launches_command(
    count: Annotated[int, typer.Option(min=1, help="Launches in a block.")] = 5000,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each kind in a run.")] = 60,
    runs: Runs = 5,
    vgpu: VgpuName = "default",
    json_file: Json = None,
) -> None:
    """Measure what gdev adds to a launch: in one process, through it and past it in turn."""
    settings = {"count": count, "blocks": blocks, "runs": runs, "vgpu": vgpu}
    with Results("launches", settings, json_file) as results:
        end(_launches.measure(count, blocks, runs, vgpu, results))


@app.command("copies")
def copies_command(
    most: Annotated[str, typer.Option(help="The largest copy.")] = "512MiB",
    runs: Runs = 2,
    vgpu: VgpuName = "default",
    json_file: Json = None,
) -> None:
    """Measure copies between host and GPU, alone and under gdev in turn (figures 3 to 5)."""
    most_bytes = parse_size(most)
    settings = {"most": most_bytes, "runs": runs, "vgpu": vgpu}
    with Results("copies", settings, json_file) as results:
        end(_copies.measure(most_bytes, runs, vgpu, results))


@app.command("search")
def search_command(
    size: Annotated[str, typer.Option("--bytes", help="The text of a search.")] = "128MiB",
    large: Annotated[
        str, typer.Option(help="The text of the search that runs all the time; 0: none.")
    ] = "1GiB",
    count: Annotated[
        str, typer.Option(help="How many searches run at once: 1,2,4 or 1..4.")
    ] = "1,2,4,8,16",
    vgpus: Annotated[
        str, typer.Option(help="How many virtual GPUs share the memory: 1,2,4 or 1..4.")
    ] = "1..4",
    memory: Annotated[
        str | None, typer.Option(help="The memory that they share; default: that of the GPU.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often a search reads its text.")] = 2000,
    json_file: Json = None,
) -> None:
    """Measure the makespan of searches beside a large one (figures 12 and 13).

    All but the large one run in the first virtual GPU, the large one in the last. For comparison,
    all run without gdev too, with the whole memory of the GPU.
    """
    if memory is not None:
        shared = parse_size(memory)
    elif found := gpus():
        shared = found[0].memory_bytes
    else:
        raise ValueError("nvidia-smi says of no GPU how much memory it has: --memory is needed")
    plan = _search.Plan(
        size=parse_size(size),
        large=parse_size(large),
        repeats=repeats,
        memory=shared,
        counts=numbers_of(count),
        vgpus=numbers_of(vgpus),
    )
    with Results("search", plan.settings(), json_file) as results:
        end(_search.measure(plan, results))


@app.command("dataflow")
def dataflow_command(
    graphs: Annotated[
        list[Graph] | None, typer.Argument(help="tree, rectangle; both if none is named.")
    ] = None,
    add: Annotated[int, typer.Option(min=0, help="Rows of the largest added matrices.")] = 4096,
    multiply: Annotated[
        int, typer.Option(min=0, help="Rows of the largest multiplied matrices.")
    ] = 2048,
    first: Annotated[int, typer.Option(min=32, help="Rows of the smallest matrices.")] = 256,
    depth: Annotated[int, typer.Option(min=1, max=8, help="Modules from first to last.")] = 6,
    width: Annotated[int, typer.Option(min=2, max=32, help="The rectangle's width.")] = 10,
    runs: Runs = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Least rounds of a run.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the matrices.")] = 1,
    vgpu: VgpuName = "default",
    json_file: Json = None,
) -> None:
    """Measure dataflows of processes that pass matrices on (figure 11).

    Their data goes through the host (copied), or stays in device memory that is shared by keys. The
    host's memory is pageable, or pinned; the first inputs and the last result need it in any case.
    """
    plan = _dataflow.Plan(
        graphs=[str(one) for one in graphs or Graph],
        depth=depth,
        width=width,
        first=first,
        add=add,
        multiply=multiply,
        runs=runs,
        repeats=repeats,
        seed=seed,
    )
    with Results("dataflow", plan.settings() | {"vgpu": vgpu}, json_file) as results:
        end(_dataflow.measure(plan, vgpu, results))


@app.command("table")
def table_command(
    result: Annotated[Path, typer.Argument(help="What --json of another command has written.")],
) -> None:
    """Print a stored result as tables of Markdown, beside the paper's figures."""
    found = _read(result)
    names = ", ".join(one["name"] for one in found["machine"]["gpus"]) or "no GPU"
    print(f"`gdev bench {found['benchmark']}`, {names}, {found['date'][:10]}.")
    for part in _PARTS[found["benchmark"]](found):
        print()
        for line in markdown(part):
            print(line)


@app.command("plot")
def plot_command(
    result: Annotated[Path, typer.Argument(help="What --json of another command has written.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file, SVG.")],
) -> None:
    """Draw a stored result like the paper's figure. Needs matplotlib (the extra gpufs[bench])."""
    found = _read(result)
    from gdev.bench import _plots

    try:
        _plots.draw(found, output)
    except ImportError as error:
        raise OSError(str(error)) from None


def _read(path: Path) -> dict[str, Any]:
    """Returns what --json has written. Raises OSError, and ValueError: it is something else."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("benchmark") not in _PARTS:
        raise ValueError(f"not a result of gdev bench: {path}")
    return found


@app.command("rivals")
def rivals_command(
    nvshare: Annotated[
        Path | None,
        typer.Option(help="Folder of libnvshare.so, nvshare-scheduler and nvsharectl."),
    ] = None,
    hami: Annotated[Path | None, typer.Option(help="HAMi-core's libvgpu.so.")] = None,
    parts: Annotated[
        str, typer.Option(help="What to measure: " + ",".join(_rivals.PARTS) + ".")
    ] = ",".join(_rivals.PARTS),
    training: Annotated[
        Path | None,
        typer.Option(help="tests/programs/torch_training.py; without it no trainings."),
    ] = None,
    training_arguments: Annotated[str, typer.Option(help="Its arguments.")] = "--steps 40",
    launches: Annotated[int, typer.Option(min=1, help="How many empty launches.")] = 100_000,
    limit: Annotated[str, typer.Option(help="The limit that is tested.")] = "8GiB",
    piece: Annotated[str, typer.Option(help="What is allocated at once.")] = "256MiB",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long bursts run.")] = 20.0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until a program is killed.")] = 90,
    json_file: Json = None,
) -> None:
    """Measure the same programs under nothing, gdev, nvshare and HAMi-core.

    nvshare and HAMi-core are not part of gdev: gdev/docs/rivals.md says how to build them. nvshare
    needs root. It must not hold more memory than the GPU has free, and no part lets it.
    """
    chosen = parts.split(",")
    for part in chosen:
        if part not in _rivals.PARTS:
            raise ValueError(f"there is no such part: {part} ({', '.join(_rivals.PARTS)})")
    plan = _rivals.Plan(
        parts=chosen,
        launches=launches,
        training=_rivals.training_command(training, training_arguments),
        limit=parse_size(limit),
        piece=parse_size(piece),
        seconds=seconds,
        timeout_s=timeout,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all programs
    with Results("rivals", asdict(plan), json_file) as results:
        end(_rivals.measure(plan, nvshare, hami, results))


def numbers_of(text: str) -> list[int]:
    """Returns the numbers of ``1,2,4`` or ``1..4``. Raises ValueError."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            begin = int(first)
            found = list(range(begin, int(last) + 1)) if dots else [begin]
        except ValueError:
            found = []
        if not found or found[0] < 1:
            raise ValueError(f"not numbers from 1 on, such as 1,2,4 or 1..4: {text}")
        numbers += found
    return numbers


def end(faults: list[str]) -> None:
    """Prints what went wrong, and ends with status 1 if anything did."""
    for fault in faults:
        print(f"gdev: {fault}", file=sys.stderr)
    if faults:
        raise typer.Exit(1)
