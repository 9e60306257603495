"""A job on all GPUs that adds up with NCCL: nccl_job.py [--processes N] [--rounds N] [--size MIB]
[--hold MIB]

With one process (0) it uses all GPUs by itself; otherwise one process for each of N GPUs. Each
round fills `size` on each GPU with numbers of its own, adds all up, and checks every one. `hold` is
memory on each GPU that is checked at the end.

Prints a line of JSON: a sum of all results, which must not depend on gdev, and the time of the
rounds. Exit status: 0, or 1 after a wrong number.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time

import torch
import torch.cuda.nccl
import torch.distributed
import torch.multiprocessing


def numbers(gpu: int, turn: int, size: int) -> torch.Tensor:
    """Returns whole numbers, small enough that sums of them are exact."""
    count = (size << 20) // 4
    found = torch.arange(count, device=f"cuda:{gpu}", dtype=torch.float32)
    return found.remainder_(1000).add_(gpu + turn)


def check(result: torch.Tensor, turn: int, gpus: int, size: int) -> float:
    """Returns the sum of a result. Raises RuntimeError: it is wrong."""
    expected = numbers(result.device.index, turn, size) - result.device.index - turn
    expected = expected * gpus + sum(range(gpus)) + turn * gpus
    if not torch.equal(result, expected):
        raise RuntimeError(f"wrong sums on GPU {result.device.index} in round {turn}")
    return float(result.double().sum())


def hold(gpu: int, size: int) -> torch.Tensor:
    return torch.full(((size << 20) // 4,), float(gpu + 1), device=f"cuda:{gpu}")


def check_held(held: list[torch.Tensor]) -> None:
    for one in held:
        if not bool((one == float(one.device.index + 1)).all()):
            raise RuntimeError(f"wrong bytes on GPU {one.device.index}")


def in_one_process(chosen: argparse.Namespace) -> tuple[float, float]:
    """Returns the sum and the seconds."""
    gpus = torch.cuda.device_count()
    held = [hold(gpu, chosen.hold) for gpu in range(gpus)]
    begin = time.time()
    total = 0.0
    for turn in range(chosen.rounds):
        values = [numbers(gpu, turn, chosen.size) for gpu in range(gpus)]
        torch.cuda.nccl.all_reduce(values)
        total += sum(check(one, turn, gpus, chosen.size) for one in values)
    check_held(held)
    return total, time.time() - begin


def rank_of_job(
    rank: int, chosen: argparse.Namespace, store: str, results: torch.multiprocessing.Queue
) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=chosen.processes
    )
    torch.distributed.all_reduce(torch.ones(1, device="cuda"))  # makes the communicator
    held = [hold(rank, chosen.hold)]
    begin = time.time()
    total = 0.0
    for turn in range(chosen.rounds):
        values = numbers(rank, turn, chosen.size)
        torch.distributed.all_reduce(values)
        total += check(values, turn, chosen.processes, chosen.size)
    check_held(held)
    results.put((total, time.time() - begin))
    torch.distributed.destroy_process_group()


def in_processes(chosen: argparse.Namespace) -> tuple[float, float]:
    results = torch.multiprocessing.get_context("spawn").Queue()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            rank_of_job, (chosen, f"{folder}/store", results), nprocs=chosen.processes
        )
    said = [results.get(timeout=10) for _ in range(chosen.processes)]
    return sum(total for total, _ in said), max(seconds for _, seconds in said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, standard in (("processes", 0), ("rounds", 100), ("size", 64), ("hold", 0)):
        parser.add_argument(f"--{name}", type=int, default=standard)
    chosen = parser.parse_args()
    total, seconds = in_processes(chosen) if chosen.processes else in_one_process(chosen)
    print(json.dumps({"sum": total.hex(), "seconds": round(seconds, 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
