#!/usr/bin/env python3
"""A checkpoint larger than the cache, applied layer by layer: a perceptron of many layers.

The file is in the safetensors format. The program writes it by hand: the length of the header, the
header as JSON, then the tensors. Only the current layer is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import support

Read = Callable[[str], Any]  # reads a tensor by its name


def make_checkpoint(path: Path, layers: int, width: int, seed: int) -> dict[str, int]:
    """Writes the file. Returns the offset of each tensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        shapes[f"layers.{layer}.weight"] = (width, width)
        shapes[f"layers.{layer}.bias"] = (width,)
    header: dict[str, Any] = {"__metadata__": {"made_by": "an example of gpufs"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the items to their size
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            # Scaled so that the activations' magnitude stays constant from layer to layer.
            file.write(
                (
                    random.standard_normal(shape, np.float32) * np.float32((2 / width) ** 0.5)
                ).tobytes()
            )
    return {name: 8 + len(text) + header[name]["data_offsets"][0] for name in shapes}


def apply(read: Read, layers: int, inputs: Any) -> Any:  # noqa: ANN401 - of either library
    """Returns the perceptron's outputs."""
    values = inputs
    for layer in range(layers):
        values = values @ read(f"layers.{layer}.weight").T + read(f"layers.{layer}.bias")
        values = values * (values > 0)
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the example."""
    options = support.parser(__doc__, cache="2MiB")
    options.add_argument("--layers", type=int, default=12, help="of the perceptron")
    options.add_argument("--width", type=int, default=512, help="of a layer")
    options.add_argument("--batch", type=int, default=16, help="inputs that go through it together")
    options.add_argument(
        "--passes", type=int, default=3, help="times that the whole checkpoint is read"
    )
    chosen = options.parse_args(arguments)
    random = np.random.default_rng(chosen.seed + 1)
    with support.folder(chosen.folder) as folder:
        path = folder / "model.safetensors"
        begins = make_checkpoint(path, chosen.layers, chosen.width, chosen.seed)

        def read_on_host(name: str) -> npt.NDArray[np.float32]:
            shape = (chosen.width, chosen.width) if name.endswith("weight") else (chosen.width,)
            return np.memmap(path, np.float32, "r", begins[name], shape)

        # Keeping the file open for all passes saves an open for each tensor.
        with support.mount_for(chosen, [path]) as mount, mount.open(path) as file:
            library, clock = support.Library.beside(mount), support.Clock(mount)
            print(
                f"a checkpoint of {file.size() / 1e6:,.1f} MB, {mount!r}, applied by {library.name}"
            )

            def read(name: str) -> Any:  # noqa: ANN401 - of either library
                with mount.array(path, name=name) as tensor:
                    clock.bytes += tensor.nbytes
                    return library.take(tensor[...])

            for number in support.steps(range(chosen.passes), chosen.passes, "passes"):
                inputs = random.standard_normal((chosen.batch, chosen.width), np.float32)
                on_device = library.put(inputs)
                with clock.running():
                    outputs = apply(read, chosen.layers, on_device)
                support.check(
                    library.back(outputs),
                    apply(read_on_host, chosen.layers, inputs),
                    f"pass {number}",
                )
            support.conclude(mount, clock, f"{chosen.passes} passes through {chosen.layers} layers")


if __name__ == "__main__":
    main()
