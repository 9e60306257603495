"""What the examples share: options, where they compute, a clock, and what they tell at the end."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import gpufs
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")
HostArray = npt.NDArray[Any]

RELATIVE_ERROR_MAX: Final = 1e-4  # of sums of 32-bit numbers that were added in another order


def parser(text: str, *, cache: str) -> argparse.ArgumentParser:
    """Options that all examples have; ``cache`` is the default of one."""
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="a GPU, the CPU device, or what is there",
    )
    made.add_argument(
        "--cache",
        default=cache,
        help="the mount's page cache; less than the data, to see evictions",
    )
    made.add_argument(
        "--folder", help="where to make the data, some MB; a temporary folder without it"
    )
    made.add_argument("--seed", type=int, default=1, help="of the data, and of what is asked of it")
    made.add_argument(
        "--no-register",
        dest="register",
        action="store_false",
        help="do not register the files for direct loads first: the first reads of a part are then staged by the host",
    )
    return made


@contextlib.contextmanager
def folder(wanted: str | None) -> Iterator[Path]:
    """The folder of ``--folder``, or one that is gone afterwards."""
    if wanted is not None:
        Path(wanted).mkdir(parents=True, exist_ok=True)
        yield Path(wanted)
        return
    with tempfile.TemporaryDirectory(prefix="gpufs-example-") as made:
        yield Path(made)


def mount_for(options: argparse.Namespace, files: Iterable[Path]) -> gpufs.Mount:
    """Mounts as the options say, with these files ready for direct loads."""
    device = cast(Literal["auto", "cpu", "cuda"], options.device)
    mount = gpufs.mount(device=device, cache=options.cache, read_only=True)
    if options.register:
        for file in files:
            mount.register_file(file)
    return mount


@dataclass(frozen=True)
class Library:
    """Who computes with what was read: PyTorch where the mount is on a GPU and PyTorch is there too, else NumPy."""

    torch: Any  # None: NumPy
    device: str

    @classmethod
    def beside(cls, mount: gpufs.Mount) -> Library:
        """Chooses."""
        if mount.device == "cuda" and importlib.util.find_spec("torch") is not None:
            import torch

            if torch.cuda.is_available():
                return cls(torch, f"cuda:{mount.ordinal}")
        return cls(None, "cpu")

    @property
    def name(self) -> str:
        """Of the library."""
        return "NumPy" if self.torch is None else f"PyTorch on {self.device}"

    def put(self, array: HostArray) -> Any:  # noqa: ANN401 - an array of either library
        """Brings an array of the host to where is computed."""
        return array if self.torch is None else self.torch.from_numpy(array).to(self.device)

    def take(self, array: Any) -> Any:  # noqa: ANN401 - an array of either library
        """Takes what gpufs has read: without a copy, unless the mount is on a GPU and NumPy computes."""
        return np.asarray(array) if self.torch is None else self.torch.from_dlpack(array)

    def back(self, made: Any) -> HostArray:  # noqa: ANN401 - an array of either library
        """Brings a result to the host."""
        return np.asarray(made if self.torch is None else made.cpu().numpy())


class Clock:
    """Time and bytes of what is measured; the rest of a run, such as checking, is not."""

    def __init__(self, mount: gpufs.Mount) -> None:
        self._mount = mount
        self.seconds = 0.0
        self.bytes = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time of the ``with`` block, and of all that it left the device to do."""
        start = time.perf_counter()
        yield
        self._mount.synchronize()
        self.seconds += time.perf_counter() - start


def steps(items: Iterable[Item], count: int, text: str) -> Iterable[Item]:
    """The items, with a bar on standard error while they are taken, if that is a terminal."""
    hidden = not sys.stderr.isatty()
    return track(
        items, text, total=count, console=Console(stderr=True), transient=True, disable=hidden
    )


def check(got: HostArray, wanted: HostArray, what: str) -> None:
    """Ends the program if two results are not the same, but for rounding."""
    scale = float(np.abs(wanted).max(initial=1.0))
    if got.shape != wanted.shape or not np.allclose(
        got, wanted, rtol=0, atol=RELATIVE_ERROR_MAX * scale
    ):
        raise SystemExit(f"{what}: not what NumPy makes of the file")


def conclude(mount: gpufs.Mount, clock: Clock, what: str) -> None:
    """Prints the last line."""
    counts = mount.stats()
    speed = clock.bytes / clock.seconds / 1e9 if clock.seconds else 0.0
    print(
        f"{what}, all as NumPy's: {clock.bytes / 1e6:,.1f} MB in {clock.seconds:.2f} s, {speed:.2f} GB/s; "
        f"{counts['hits']:,} hits, loads: {counts['direct_loads']:,} direct, {counts['staged_loads']:,} staged; "
        f"{counts['evictions']:,} evictions, "
        f"{(counts['direct_bytes'] + counts['staged_bytes'] + counts['open_bytes']) / 1e6:,.1f} MB from the file"
    )
