"""Runs trainings that do not fit the GPU together:

    trainings.py [--expandable-segments] COUNT RATIO [PROGRAM.py] [ARGUMENT...]

COUNT programs `torch_training.py ARGUMENT...`, or another of this folder, each with a seed of its
own, first one after the other without gdev, then together under gdev, where programs may have so
much of the GPU that all together use RATIO (1.3) times of it. Prints a line of JSON: whether all
losses are bit-equal, and the ratio of the times. Exit status: 0, or 1 if a loss differs.

--expandable-segments: PyTorch makes its memory with cuMemCreate, in all of these programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gdev._records import Client
from small_gpu import overheads, set_memory

from gdev import _daemon, _files, cli

# Until all programs have their models.
HEAD_START_S = 40.0


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    text, _ = process.communicate()
    if process.returncode != 0:
        sys.exit(f"a training failed: {process.returncode}\n{text}")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def start(program: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, Path(__file__).with_name(program), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> int:
    arguments = sys.argv[1:]
    is_expandable = arguments[0] == "--expandable-segments"
    if is_expandable:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        arguments = arguments[1:]
    count, ratio, rest = int(arguments[0]), float(arguments[1]), arguments[2:]
    program = rest.pop(0) if rest and rest[0].endswith(".py") else "torch_training.py"
    seeds = [["--seed", str(i)] for i in range(count)]
    alone = [result_of(start(program, [*rest, *seed], dict(os.environ))) for seed in seeds]
    environment = cli.environment_of("default")
    with _daemon.connect(start=True):
        pass
    at = ["--start", str(time.time() + HEAD_START_S)]
    running = [start(program, [*rest, *seed, *at], environment) for seed in seeds]
    memory = int(sum(one["reserved_mib"] for one in alone) / ratio) << 20
    before = set_memory(memory + sum(overheads(one.pid for one in running)))
    clients: list[Client] = []
    while any(one.poll() is None for one in running):
        time.sleep(0.2)
        with _daemon.Daemon(_files.socket_path()) as daemon:
            found = daemon.clients()
        clients = found if len(found) == count else clients
    together = [result_of(one) for one in running]
    set_memory(before)
    lasted = [one["end"] - one["begin"] for one in alone]
    makespan = max(one["end"] for one in together) - min(one["begin"] for one in together)
    are_equal = all(a["losses"] == b["losses"] for a, b in zip(alone, together, strict=True))
    said = {
        "programs": count,
        "expandable_segments": is_expandable,
        "gpu_mib": memory >> 20,
        "reserved_mib": [one["reserved_mib"] for one in alone],
        "alone_s": [round(one, 2) for one in lasted],
        "makespan_s": round(makespan, 2),
        "ratio": round(makespan / sum(lasted), 3),
        "bit_equal": are_equal,
        "wired_mib": [one.wired >> 20 for one in clients],
        "turns": [one.counts["turns"] for one in clients],
        "gb_out": [round(one.counts["bytes_out"] / 1e9, 1) for one in clients],
        "moving_s": [round(one.counts["moving_ns"] / 1e9, 2) for one in clients],
    }
    print(json.dumps(said), flush=True)
    return 0 if are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
