"""Memory shared by keys, with PyTorch: the bytes outlive the process that made them, kill -9 too.

    gdev run --vgpu a -- python torch_shared_memory.py

The virtual GPU needs 4 GiB. Prints JSON; exit status 1 if something is wrong.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import torch

import gdev

KEY = "gdev test of shared memory"
BYTES = 1 << 30
READ_ONLY = 0o10000  # SHM_RDONLY

PART = 1 << 26  # of what is compared at once

MAKER = f"""
import os, gdev, torch
made = torch.from_dlpack(gdev.shm({KEY!r}, {BYTES}, exclusive=True))
assert not made.any(), "new memory is not zero"
for begin in range(0, {BYTES}, {PART}):
    made[begin : begin + {PART}] = torch.arange(begin, begin + {PART}, device="cuda") % 251
torch.cuda.synchronize()
os.kill(os.getpid(), 9)
"""


def attaches_read_only(number: int) -> int:
    """Returns 0, or the errno: the driver may have no read-only mappings."""
    library = ctypes.CDLL(None)
    address = ctypes.c_uint64()
    result = int(library.gshmat(number, ctypes.byref(address), READ_ONLY))
    if result == 0:
        library.gshmdt(address)
    return -result


def main() -> int:
    torch.cuda.init()
    before = torch.cuda.mem_get_info()[0]
    maker = subprocess.run([sys.executable, "-c", MAKER], check=False)
    with gdev.shm(KEY, 0, create=False) as memory:
        while_it_is_there = torch.cuda.mem_get_info()[0]
        found = torch.from_dlpack(memory)
        is_equal = all(
            bool((found[i : i + PART] == torch.arange(i, i + PART, device="cuda") % 251).all())
            for i in range(0, BYTES, PART)
        )
        read_only = attaches_read_only(memory.id)
        through_interface = torch.as_tensor(memory, device="cuda").data_ptr() == memory.pointer
        memory.remove()
        del found
    torch.cuda.empty_cache()
    after = torch.cuda.mem_get_info()[0]
    said = {
        "maker": maker.returncode,
        "equal": is_equal,
        "charged": before - while_it_is_there,
        "free again": after - while_it_is_there,
        "array interface": through_interface,
        "errno of a read-only attachment": read_only,
    }
    print(json.dumps(said))
    is_right = maker.returncode == -9 and is_equal and through_interface
    return 0 if is_right and said["charged"] == said["free again"] == BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
