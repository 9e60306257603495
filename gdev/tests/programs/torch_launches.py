"""Trains a small network with PyTorch, and counts launches twice: by CUPTI, and by gdev.

Prints a line of JSON. Exit status: 0 if both counts are equal and gdev knew all functions.
"""

from __future__ import annotations

import collections
import sys
import time

import torch
from seen import compare, status
from torch.profiler import ProfilerActivity, profile


def train(steps: int) -> float:
    """Trains with a CUDA graph in between. Returns the last loss."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(64, 512, device="cuda")
    target = torch.randint(0, 10, (64,), device="cuda")
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = model(data)
    for _ in range(10):
        graph.replay()
    return float(loss) + float(out.sum())


def main() -> int:
    train(3)  # loads modules, and libraries
    torch.cuda.synchronize()
    before = status()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        result = train(50)
        torch.cuda.synchronize()
    after = status()
    launches = collections.Counter(
        event.name for event in recorded.events() if "Launch" in event.name
    )
    a = torch.randn(64, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(100_000):
        a.add_(1)
    torch.cuda.synchronize()
    launch_us = (time.perf_counter() - begin) * 10
    said: dict[str, object] = {"result": result, "us_per_launch": round(launch_us, 3)}
    return compare(said, before, after, launches)


if __name__ == "__main__":
    sys.exit(main())
