"""Allocates with PyTorch until CUDA's error: torch_limit.py MIB [expandable]

Prints a line of JSON: what PyTorch sees of the GPU, and how many MiB it got, in pieces of MIB.
"""

from __future__ import annotations

import json
import os
import sys

if "expandable" in sys.argv:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch


def main() -> None:
    piece = int(sys.argv[1])
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    held = []
    error = ""
    try:
        while len(held) * piece < 1 << 20:
            held.append(torch.full((piece << 18,), float(len(held)), device="cuda"))
    except torch.OutOfMemoryError as failure:
        error = str(failure).splitlines()[0]
    right = all(float(one[-1]) == i for i, one in enumerate(held))
    got = len(held) * piece
    held.clear()
    torch.cuda.empty_cache()
    # What is freed can be had again.
    again = torch.ones(got << 17, device="cuda")
    said = {
        "free_mib": free >> 20,
        "total_mib": total >> 20,
        "got_mib": got,
        "right": right and float(again[-1]) == 1.0,
        "error": error,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
