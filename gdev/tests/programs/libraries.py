"""Uses CuPy and cuBLASLt (through PyTorch) on a GPU, and NCCL on two if there are two.

Prints a line of JSON: the sums, which must not depend on gdev.
"""

from __future__ import annotations

import json

import cupy
import torch
import torch.distributed
import torch.multiprocessing


def all_reduce(rank: int, size: int, results: torch.multiprocessing.Queue) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=size
    )
    values = torch.full((1 << 20,), float(rank + 1), device="cuda")
    torch.distributed.all_reduce(values)
    results.put(float(values.sum()))
    torch.distributed.destroy_process_group()


def main() -> None:
    said = {"cupy": float(cupy.arange(1 << 20, dtype=cupy.float64).sum())}
    torch.manual_seed(0)
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    said["cublaslt"] = float(torch.nn.functional.linear(a, a, a[0]).float().sum())
    gpus = torch.cuda.device_count()
    if gpus > 1:
        results = torch.multiprocessing.get_context("spawn").Queue()
        torch.multiprocessing.spawn(all_reduce, (gpus, results), nprocs=gpus)
        said["nccl"] = sorted(results.get() for _ in range(gpus))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
