"""``gpufs matvec``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gpufs._mount import Device, Mount
from gpufs.cli._exit_status import FAILED
from gpufs.cli._options import CacheOption, DeviceOption, PageOption, ProgressOption, StatsOption
from gpufs.cli._output import cache_lines, complain, is_terminal, note
from gpufs.cli._progress import loading_bar
from gpufs.sizes import format_size

if TYPE_CHECKING:
    from gpufs import linear


def matvec_command(
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
    stats: StatsOption = False,
    progress: ProgressOption = True,
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
        with loading_bar(mount, progress and is_terminal(sys.stderr)):
            try:
                kind = None if sizes is None else dtype
                result = linear.matvec(mount, matrix, vector, out, dtype=kind, shape=sizes, alone=True)
            except (TypeError, ValueError) as error:
                complain(str(error))
                raise typer.Exit(FAILED) from None
        if stats:
            note("\n".join(_product_lines(mount, result)))


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
    yield from cache_lines(mount.stats(), mount.direct_path)
