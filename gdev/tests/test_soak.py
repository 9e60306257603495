"""The soak for a GPU runs, with small numbers, on the simulated one."""

from __future__ import annotations

import subprocess
import sys

from .gdev_daemon import Daemon
from .simulated_gpu import BUILD, ROOT, TIMEOUT_S


def test_swaps_and_kills_leave_nothing(daemon: Daemon) -> None:
    soak = ROOT / "gdev" / "tests" / "programs" / "swap_soak.py"
    done = subprocess.run(
        [sys.executable, soak, BUILD / "tests" / "memory", "10", "3", "8MiB"],
        env=daemon.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0 and "3 kills" in done.stdout, done.stdout + done.stderr
    assert "nothing wrong, nothing left" in done.stdout
