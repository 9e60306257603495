"""What gdev says of a size of jobs that is none."""

from __future__ import annotations

import pytest

from .gdev_daemon import Daemon, Program


def started(daemon: Daemon, **environment: str) -> Program:
    program = daemon.program("a", env={"GDEV_JOB": "job"} | environment)
    program.does("init")
    return program


@pytest.mark.parametrize("size", ["two", "2x", "0", "256", "99999999999", " 2"])
def test_a_size_that_is_none_is_named(shared: Daemon, size: str) -> None:
    with started(shared, GDEV_JOB_SIZE=size, LOCAL_WORLD_SIZE="2") as program:
        (line,) = program.end().splitlines()
    assert line.startswith("gdev: process ")
    assert f'GDEV_JOB_SIZE is "{size}", which is no number from 1 to 32' in line


def test_it_is_named_once_also_for_a_second_daemon(shared: Daemon) -> None:
    with started(shared, GDEV_JOB_SIZE="two") as program:
        shared.kill()
        shared.start()
        program.does("alloc", 1 << 20)
        assert len(program.end().splitlines()) == 1


@pytest.mark.parametrize("size", ["", "1", "32"])
def test_nothing_is_said_of_others(shared: Daemon, size: str) -> None:
    with started(shared, GDEV_JOB_SIZE=size, LOCAL_WORLD_SIZE="two") as program:
        assert program.end() == ""
