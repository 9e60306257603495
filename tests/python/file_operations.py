"""Random operations on a file against a model of it."""

from __future__ import annotations

import random
from pathlib import Path

import gpufs
import numpy as np
from gpufs._device import Array


def bytes_of(array: Array) -> bytes:
    return np.asarray(array).tobytes()


def random_operations(mount: gpufs.Mount, path: Path, seed: int, operations: int) -> None:
    """A file of the mount against bytes in memory."""

    def room(count: int) -> Array:
        """Something to read into."""
        if mount.device == "cpu":
            return np.zeros(count, np.uint8)
        with mount.open(path) as other:  # what is read does not matter
            return other.read(count)

    rng = random.Random(seed)
    model = bytearray(rng.randbytes(rng.choice([0, 1, 5000, 200_000])))
    path.write_bytes(model)
    opened = mount.open(path, "r+")
    limit = 700_000
    for _ in range(operations):
        offset = rng.choice([0, rng.randrange(limit), rng.randrange(len(model) + 1)])
        count = rng.choice([rng.randrange(10), rng.randrange(10_000), rng.randrange(100_000)])
        match rng.choice(
            ["write", "write", "read", "readinto", "gather", "truncate", "sync", "reopen"]
        ):
            case "write":
                data = rng.randbytes(count)
                assert (
                    opened.write(
                        data if rng.randrange(2) else np.frombuffer(data, np.uint8), offset
                    )
                    == count
                )
                if count:
                    model.extend(bytes(max(offset - len(model), 0)))
                    model[offset : offset + count] = data
            case "read":
                assert bytes_of(opened.read(count, offset)) == model[offset : offset + count]
            case "readinto":
                out = room(count)
                count = out.nbytes
                came = opened.readinto(out, offset)
                assert came == len(model[offset : offset + count])
                assert bytes_of(out)[:came] == model[offset : offset + count]
            case "gather":
                record = rng.choice([1, 30, 100, 3000, 9000])
                first = rng.choice([0, 1, 77])
                records = max(len(model) - first, 0) // record
                index = (
                    [rng.randrange(-records, records) for _ in range(rng.randrange(20))]
                    if records
                    else []
                )
                expected = [model[first + (i % records) * record :][:record] for i in index]
                keep = rng.choice(["auto", "always", "never"])
                # type: ignore[arg-type]
                found = opened.gather(index, record, offset=first, keep=keep)
                assert bytes_of(found) == b"".join(expected)
            case "truncate":
                size = min(offset, limit)
                opened.truncate(size)
                del model[size:]
                model.extend(bytes(size - len(model)))
            case "sync":
                opened.fsync()
                assert path.read_bytes() == model
            case "reopen":
                opened.close()
                assert path.read_bytes() == model
                opened = mount.open(path, "r+")
        assert opened.size() == len(model)
    opened.close()
    assert path.read_bytes() == model
