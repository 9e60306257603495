"""gdev, as pip installed it: its commands find their daemon and its library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gdev

PROGRAMS = Path(gdev.__file__).parent / "programs"


def run(socket: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("gdev"), *arguments],
        env=dict(os.environ) | {"GDEV_SOCKET": str(socket)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(not PROGRAMS.exists(), reason="built without CUDA's headers")
def test_a_command_starts_the_daemon_and_ends_it(tmp_path):
    socket = tmp_path / "socket"
    assert (PROGRAMS / "libcuda.so.1").exists()
    added = run(socket, "vgpu", "add", "a", "--memory", "2GiB")
    assert (added.returncode, added.stderr) == (0, "")
    assert run(socket, "vgpu", "list").stdout.splitlines()[1].split()[:3] == ["a", "2", "GiB"]
    again = run(socket, "vgpu", "add", "a", "--memory", "2GiB")
    assert (again.returncode, again.stderr) == (
        1,
        "gdev: a: there is a virtual GPU of this name already\n",
    )
    assert run(socket, "stop").returncode == 0
    gone = run(socket, "shm")
    assert gone.returncode == 1
    assert gone.stderr.startswith("gdev: no daemon runs")


def test_help_names_all_commands():
    said = run(Path("/nonexistent"), "--help").stdout
    for command in ("run", "vgpu", "ps", "stop"):
        assert command in said
