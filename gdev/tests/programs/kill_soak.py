"""Kills programs that allocate, again and again: kill_soak.py PROGRAM VGPU SECONDS [SEED]

PROGRAM is the tests' client `memory`. Four run at a time, under the daemon of GDEV_SOCKET. After
each round nothing of them may be in use. Prints a line: how many were killed, and the most that was
in use. Exit status: 0, or 1 with what was left.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time

from gdev._records import Vgpu

from gdev import _daemon, _files, cli

AT_ONCE = 4
# More than most limits allow: the rest is refused.
COMMANDS = "init\n" + "alloc 536870912\nfill 0 7 4096\ncreate 268435456\nmap 1\n" * 4
# The daemon hears of the end of a process from the kernel.
GONE_WITHIN_S = 5.0


def report(vgpu: str) -> Vgpu:
    """Returns what the daemon says of a virtual GPU."""
    with _daemon.Daemon(_files.socket_path()) as daemon:
        return next(one for one in daemon.vgpus() if one.name == vgpu)


def main() -> int:
    program, vgpu, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    chance = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 0)
    environment = cli.environment_of(vgpu)
    kills, most = 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        running = [
            subprocess.Popen(
                [program],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(AT_ONCE)
        ]
        for one in running:
            assert one.stdin is not None
            one.stdin.write(COMMANDS)
            one.stdin.flush()
        time.sleep(chance.random() * 1.2)
        most = max(most, report(vgpu).used)
        for one in running:
            one.kill()
            one.wait()
            assert one.stdin is not None
            one.stdin.close()
            kills += 1
        deadline = time.monotonic() + GONE_WITHIN_S
        left = report(vgpu)
        while (left.used or left.clients) and time.monotonic() < deadline:
            time.sleep(0.01)
            left = report(vgpu)
        if left.used or left.clients:
            print(f"left after {kills} kills: {left}")
            return 1
    print(f"{kills} kills, at most {most >> 20} MiB in use, nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
