"""Two programs hold more than the whole GPU: whole_gpu.py PROGRAM RATIO CYCLES

PROGRAM is the tests' client `memory`; KERNELS names its PTX. Both hold the same, together RATIO
(1.3) times what the GPU has. They fill all of it; then the GPU checks and changes all bytes of one
and of the other, CYCLES times. No limit is set, neither of the GPU's memory nor of the host's.
Prints a line of JSON: what each holds, the seconds to fill it and of each cycle, what gdev moved.
Exit status: 0, or 1 after a wrong byte or an error.
"""

from __future__ import annotations

import json
import sys
import time

from swap_speed import Holder

from gdev import _daemon, _files

BLOCK = 32 << 20  # all allocations are multiples of it


def main() -> int:
    program, ratio, cycles = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    holders = [Holder(program, 4 * BLOCK, 100)]
    with _daemon.Daemon(_files.socket_path()) as daemon:
        gpu = daemon.gpus()[0]
        holders.pop().end()
        size = int(gpu.total * ratio / 2) // (4 * BLOCK) * 4 * BLOCK
        seconds = []
        for value in (100, 200):
            begin = time.monotonic()
            holders.append(Holder(program, size, value))
            seconds.append(round(time.monotonic() - begin, 2))
        for _ in range(cycles):
            begin = time.monotonic()
            for one in holders:
                one.check()
            seconds.append(round(time.monotonic() - begin, 2))
        seen = [one.client(daemon) for one in holders]
        for one in holders:
            one.end()
    said = {
        "gpu_mib": gpu.total >> 20,
        "each_mib": size >> 20,
        "fill_s": seconds[:2],
        "cycle_s": seconds[2:],
        "gb_out": [round(one.counts["bytes_out"] / 1e9, 1) for one in seen],
        "moving_s": [round(one.counts["moving_ns"] / 1e9, 2) for one in seen],
    }
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
