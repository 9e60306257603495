"""``gpufs matvec`` and ``gpufs matmul``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias, cast

import typer

from gpufs._mount import Mount
from gpufs._options import Device
from gpufs.cli._exit_status import FAILED
from gpufs.cli._options import CacheOption, DeviceOption, PageOption, ProgressOption, StatsOption
from gpufs.cli._output import cache_lines, complain, is_terminal, note
from gpufs.cli._progress import loading_bar
from gpufs.sizes import format_size

OutOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "-o", "--out", metavar="OUT", help="The product, in float32; .npy if its name ends so."
    ),
]
TypeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="float32|bfloat16", help="Of raw files.", show_default="float32"),
]


def matvec_command(
    matrix: Annotated[
        str, typer.Argument(metavar="MATRIX", help="A .npy file, or a raw one with --shape.")
    ],
    vector: Annotated[
        str, typer.Argument(metavar="VECTOR", help="As many numbers as the matrix has columns.")
    ],
    out: OutOption,
    shape: Annotated[
        str | None,
        typer.Option(metavar="ROWSxCOLUMNS", help="Of a raw matrix; a vector is raw then, too."),
    ] = None,
    dtype: TypeOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "64KiB",
    stats: StatsOption = False,
    progress: ProgressOption = True,
) -> None:
    """Multiply a matrix file by a vector file.

    The matrix may be larger than the GPU's memory. An existing OUT is replaced when the new one is
    complete.

    \b
    gpufs matvec matrix.npy vector.npy -o product.npy
    gpufs matvec matrix vector -o product --shape 1000000x4096    raw files

    Exit status: 0, 2 after an error.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import linear

    sizes = None if shape is None else cast(tuple[int, int], _shape(shape, 2))
    kind = _raw_type(dtype, shape, matrix, vector)

    def multiply(mount: Mount) -> list[str]:
        done = linear.matvec(mount, matrix, vector, out, dtype=kind, shape=sizes, alone=True)
        speed = done.bytes / done.seconds / 1e9 if done.seconds else 0.0
        return [
            f"matrix    {done.rows:,} x {done.columns:,}, {format_size(done.bytes)}",
            f"time      {done.seconds:.3f} s, {speed:.2f} GB/s",
        ]

    _run(multiply, device, cache, page, stats, progress)


def matmul_command(
    a: Annotated[str, typer.Argument(metavar="A", help="A .npy file, or a raw one with --shape.")],
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="As many rows as A has columns; of the same kind as A."),
    ],
    out: OutOption,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="ROWSxDEPTHxCOLUMNS",
            help="Of raw matrices: A is ROWS x DEPTH, B is DEPTH x COLUMNS.",
        ),
    ] = None,
    dtype: TypeOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "64KiB",
    stats: StatsOption = False,
    progress: ProgressOption = True,
) -> None:
    """Multiply two matrix files.

    A and the product may be larger than the GPU's memory; B must fit into it. An existing OUT is
    replaced when the new one is complete.

    \b
    gpufs matmul a.npy b.npy -o product.npy
    gpufs matmul a b -o product --shape 8192x4096x2048 --dtype bfloat16

    Exit status: 0, 2 after an error.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import linear

    sizes = None if shape is None else cast(tuple[int, int, int], _shape(shape, 3))
    kind = _raw_type(dtype, shape, a, b)

    def multiply(mount: Mount) -> list[str]:
        done = linear.matmul(mount, a, b, out, dtype=kind, shape=sizes, alone=True)
        speed = done.operations / done.seconds / 1e12 if done.seconds else 0.0
        return [
            f"matrices  {done.rows:,} x {done.depth:,} x {done.columns:,}, "
            f"{format_size(done.bytes)}",
            f"time      {done.seconds:.3f} s, {speed:.2f} TFLOP/s",
        ]

    _run(multiply, device, cache, page, stats, progress)


def _run(
    multiply: Callable[[Mount], list[str]],
    device: str,
    cache: str | None,
    page: str,
    stats: bool,
    progress: bool,
) -> None:
    """Multiplies, or prints an error and exits with status 2.

    ``multiply`` returns lines about its work.
    """
    try:
        with Mount(device=cast(Device, device), cache=cache, page=page) as mount:
            with loading_bar(mount, progress and is_terminal(sys.stderr)):
                lines = multiply(mount)
            if stats:
                note(
                    "\n".join(
                        [
                            f"ran on    {mount.device_name}",
                            *lines,
                            *cache_lines(mount.stats(), mount.direct_path),
                        ]
                    )
                )
    except (TypeError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None


def _raw_type(dtype: str | None, shape: str | None, *names: str) -> str | None:
    """Returns the type of raw files; None for other files, whose headers contain it."""
    if dtype not in (None, "float32", "bfloat16"):
        raise typer.BadParameter(f"{dtype!r} is not one of float32 and bfloat16")
    if shape is None:
        if dtype is not None:
            raise typer.BadParameter("--dtype is for raw files, which need --shape, too")
        for name in names:
            if not name.endswith(".npy"):
                raise typer.BadParameter(f"{name}: a raw file needs --shape")
        return None
    for name in names:
        if name.endswith(".npy"):
            raise typer.BadParameter(
                f"{name}: a .npy file says its shape itself; --shape is for raw files, all of them"
            )
    return dtype or "float32"


def _shape(text: str, count: Literal[2, 3]) -> tuple[int, ...]:
    numbers = text.lower().split("x")
    if len(numbers) != count or not all(
        number.isascii() and number.isdigit() for number in numbers
    ):
        words, example = ("two", "1000x512") if count == 2 else ("three", "1000x512x300")
        raise typer.BadParameter(f"a shape is {words} numbers, as {example}, not {text!r}")
    return tuple(map(int, numbers))
