"""PyTorch shares CUDA tensors between processes, both ways: 100 MiB each.

    gdev run --vgpu a -- python torch_ipc.py

The virtual GPU needs 2 GiB. Prints JSON; exit status 1 if something is wrong.
"""

from __future__ import annotations

import json
import sys
from multiprocessing.queues import Queue

import torch
import torch.multiprocessing as multiprocessing

COUNT = 100 * (1 << 20) // 4  # of 4 bytes
TIMEOUT_S = 60


def numbers(seed: int) -> torch.Tensor:
    """Returns numbers that tell their place, and the seed."""
    return torch.arange(seed, seed + COUNT, dtype=torch.int32, device="cuda")


def work(received: Queue[object], sent: Queue[object]) -> None:
    """The other process: checks and changes what it gets, and sends a tensor of its own."""
    whole = received.get(timeout=TIMEOUT_S)
    part = received.get(timeout=TIMEOUT_S)
    assert isinstance(whole, torch.Tensor) and isinstance(part, torch.Tensor)
    is_equal = bool((whole == numbers(1)).all()) and bool((part == numbers(1)[COUNT // 2 :]).all())
    whole += 6
    own = numbers(100)
    torch.cuda.synchronize()
    sent.put(is_equal)
    sent.put(own)
    received.get(timeout=TIMEOUT_S)  # the first process has checked, and changed `own`
    sent.put(bool((own == numbers(103)).all()))
    del whole, part


def main() -> int:
    context = multiprocessing.get_context("spawn")
    to_other, from_other = context.Queue(), context.Queue()
    other = context.Process(target=work, args=(to_other, from_other))
    other.start()
    shared = numbers(1)
    torch.cuda.synchronize()
    to_other.put(shared)
    to_other.put(shared[COUNT // 2 :])  # the same memory, from an offset on
    said = {"other sees": from_other.get(timeout=TIMEOUT_S)}
    got = from_other.get(timeout=TIMEOUT_S)
    said["sees changes"] = bool((shared == numbers(7)).all())
    said["sees the other's"] = bool((got == numbers(100)).all())
    got += 3
    torch.cuda.synchronize()
    to_other.put("changed")
    said["other sees changes"] = from_other.get(timeout=TIMEOUT_S)
    del got
    other.join(TIMEOUT_S)
    said["other ends well"] = other.exitcode == 0
    print(json.dumps(said))
    return 0 if all(said.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
