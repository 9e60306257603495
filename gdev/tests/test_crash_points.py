"""A process that is killed or stopped after any step of gdev leaves nothing, and harms nobody."""

from __future__ import annotations

import contextlib
import random
import signal
from pathlib import Path

import pytest

from .crash_world import EndedError, World, points
from .gdev_daemon import seed_of_test

OF_CLIENTS = points("interposer")
OF_DAEMON = points("daemon")


def run_with(folder: Path, crash: str, is_daemon: bool) -> World:
    """Runs all until a process ends at its point, or to the end; then nothing may be left."""
    with World(folder, crash, is_daemon) as world:
        with contextlib.suppress(EndedError):
            world.run()
        world.check()
    return world


def test_each_point_has_a_name_of_its_own() -> None:
    names = [*OF_CLIENTS, *OF_DAEMON]
    assert len(names) == len(set(names)) > 80


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_a_program_that_is_killed(tmp_path: Path, name: str) -> None:
    world = run_with(tmp_path, f"{name}:1", is_daemon=False)
    assert -signal.SIGKILL in world.kills, "no program comes to this point"


@pytest.mark.parametrize("name", OF_DAEMON)
def test_a_daemon_that_is_killed(tmp_path: Path, name: str) -> None:
    world = run_with(tmp_path, f"{name}:1", is_daemon=True)
    assert world.crashes == 1, "the daemon does not come to this point"


@pytest.mark.parametrize("is_daemon", [False, True])
def test_a_process_that_stops_for_a_moment(tmp_path: Path, is_daemon: bool) -> None:
    """At a point by chance: nothing fails."""
    name = random.Random(seed_of_test()).choice(OF_DAEMON if is_daemon else OF_CLIENTS)
    print(name)
    world = run_with(tmp_path, f"{name}:1:stop", is_daemon)
    assert world.stops != 0 and world.crashes == 0 and set(world.kills) <= {None}
