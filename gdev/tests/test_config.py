"""A file of virtual GPUs and settings: gdev apply, GDEV_CONFIG, gdev service."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from .gdev_daemon import Daemon

OWN = pwd.getpwuid(os.getuid()).pw_name
FILE = """
[gpu]
memory = "48MiB"
spare = "2MiB"
host_memory = 134217728
swap_files = "64MiB"

[vgpu.a]
memory = "16MiB"
reserve = "4MiB"
priority = 7
when_full = "wait"
end_after = 60

[vgpu."b.c"]
memory = "none"
users = "everybody"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "gdev.toml"
    made.write_text(FILE)
    return made


def state(daemon: Daemon) -> list[list[str]]:
    """The rows of gdev vgpu list, and all that the daemon keeps."""
    rows = daemon.must("vgpu", "list").splitlines()[1:]
    kept = daemon.socket.with_name("socket.state")
    return [*(row.split() for row in rows), kept.read_text().split() if kept.exists() else []]


def test_the_daemon_is_as_the_file_says(daemon: Daemon, file: Path) -> None:
    lines = daemon.must("apply", str(file)).splitlines()
    assert lines[0].startswith("changed gpu: memory none -> 48 MiB, spare 0 B -> 2 MiB, host_mem")
    assert lines[0].endswith(" -> 128 MiB, swap_files 0 B -> 64 MiB")
    assert lines[1:] == [
        "added a: memory 16 MiB, reserve 4 MiB, priority 7, when_full wait, end_after 60,"
        f" users {OWN}",
        "added b.c: memory none, reserve 0 B, priority 0, when_full swap, end_after 0,"
        " users everybody",
    ]
    assert [row[:1] for row in state(daemon)[:2]] == [["a"], ["b.c"]]
    assert state(daemon)[0][:9] == ["a", "16", "MiB", "4", "MiB", "7", "wait", "60", "s"]


def test_it_is_idempotent(daemon: Daemon, file: Path) -> None:
    daemon.must("apply", str(file))
    before = state(daemon)
    assert daemon.must("apply", str(file), "--prune") == ""
    assert state(daemon) == before


def test_sizes_that_are_no_whole_units_are_idempotent_too(daemon: Daemon, file: Path) -> None:
    file.write_text("gpu.spare = 5\n[vgpu.a]\nmemory = 5000\nreserve = 1\n")
    assert daemon.must("apply", str(file)) != ""
    assert daemon.must("apply", str(file)) == ""


def test_what_there_is_changes_while_programs_run(daemon: Daemon, file: Path) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB", "--priority", "3", "--users", "everybody")
    daemon.must("vgpu", "set", "a", "--end-after", "9")
    with daemon.program("a") as program:
        program.does("init")
        file.write_text('[vgpu.a]\nmemory = "16MiB"\n')
        assert daemon.must("apply", str(file)) == (
            "changed a: memory 8 MiB -> 16 MiB, priority 3 -> 0, end_after 9 -> 0,"
            f" users everybody -> {OWN}\n"
        )
        program.does("alloc", 16 << 20)
    file.write_text('[vgpu.a]\nmemory = "16MiB"\nusers = "everybody"\n')
    assert daemon.must("apply", str(file)) == f"changed a: users {OWN} -> everybody\n"
    file.write_text('[vgpu.a]\nmemory = "16MiB"\nusers = "54321"\n')
    assert daemon.must("apply", str(file)) == "changed a: users everybody -> 54321\n"
    file.write_text('[vgpu.a]\nmemory = "16MiB"\n')
    assert daemon.must("apply", str(file)) == ""  # what a user has stays that user's


def test_settings_that_are_not_named_stay(daemon: Daemon, file: Path) -> None:
    daemon.must("apply", str(file))
    file.write_text('[gpu]\nmemory = "40MiB"\n')
    assert daemon.must("apply", str(file)) == "changed gpu: memory 48 MiB -> 40 MiB\n"
    assert len(state(daemon)) == 3  # nor are virtual GPUs removed


def test_prune_removes_what_is_not_used(daemon: Daemon, file: Path) -> None:
    for name in ("old", "used"):
        daemon.must("vgpu", "add", name, "--memory", "8MiB")
    with daemon.program("used") as program:
        program.does("init")
        lines = daemon.must("apply", str(file), "--prune").splitlines()[3:]
        assert lines[0] == "removed old" and lines[1].startswith("kept used: programs use it")
    assert [row[0] for row in state(daemon)[:-1]] == ["used", "a", "b.c"]


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("[gpu2]\n", "gpu2: there is no such key"),
        ("[vgpu.z]\nmemory = 4096\nmemroy = 1\n", "vgpu.z.memroy: there is no such key"),
        ("[vgpu.z]\nreserve = 4096\n", "vgpu.z.memory: is missing"),
        ("[vgpu.z]\nmemory = 4096\nreserve = 8192\n", "vgpu.z.reserve: is at most its memory"),
        ('[vgpu.z]\nmemory = "much"\n', "vgpu.z.memory: not a size: 'much'"),
        ("[vgpu.z]\nmemory = 0\n", "vgpu.z.memory: a limit is 1 byte to 8 TiB"),
        ("[vgpu.z]\nmemory = true\n", "vgpu.z.memory: a size is a number of bytes"),
        ("[vgpu.z]\nmemory = 1.5\n", "vgpu.z.memory: a size is a number of bytes"),
        ("[vgpu.z]\nmemory = 1\nreserve = -1\n", "vgpu.z.reserve: a size must not be negative"),
        ("[vgpu.z]\nmemory = 1\npriority = 1001\n", "vgpu.z.priority: a priority is -1000 to"),
        ("[vgpu.z]\nmemory = 1\npriority = true\n", "vgpu.z.priority: a priority is -1000 to"),
        ('[vgpu.z]\nmemory = 1\nwhen_full = "x"\n', "vgpu.z.when_full: is one of swap, wait, fail"),
        ("[vgpu.z]\nmemory = 1\nwhen_full = []\n", "vgpu.z.when_full: is one of swap, wait, fail"),
        ("[vgpu.z]\nmemory = 1\nend_after = -1\n", "vgpu.z.end_after: a number of seconds is 0"),
        ("[vgpu.z]\nmemory = 1\nend_after = true\n", "vgpu.z.end_after: a number of seconds is"),
        ("[vgpu.z]\nmemory = 1\nusers = 1\n", "vgpu.z.users: is a user, or"),
        ('[vgpu.z]\nmemory = 1\nusers = "no-one"\n', "vgpu.z.users: there is no such user: no-one"),
        ('[vgpu."z y"]\nmemory = 1\n', "vgpu.z y: a name has 1 to 31 letters"),
        (f"[vgpu.{'z' * 32}]\nmemory = 1\n", "a name has 1 to 31 letters"),
        ("[vgpu]\nz = 1\n", "vgpu.z: is a table, not 1"),
        ("vgpu.z = 1\n", "vgpu.b.c.vgpu: there is no such key"),
        ("[[[\n", "Invalid"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing(
    daemon: Daemon, file: Path, added: str, said: str
) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    before = state(daemon)
    file.write_text(FILE + added)
    process = daemon.gdev("apply", str(file), "--prune")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith(f"gdev: {file}: ") and said in process.stderr
    assert process.stderr.count("\n") == 1
    assert state(daemon) == before


def test_spare_is_less_than_what_the_daemon_has(daemon: Daemon, file: Path) -> None:
    daemon.must("gpu", "set", "--memory", "8MiB")
    before = state(daemon)
    file.write_text('[gpu]\nspare = "8MiB"\n[vgpu.a]\nmemory = "1MiB"\n')
    process = daemon.gdev("apply", str(file))
    assert process.returncode == 2 and "gpu.spare: is less than" in process.stderr
    assert state(daemon) == before


def test_a_file_that_is_not_there(daemon: Daemon, tmp_path: Path) -> None:
    process = daemon.gdev("apply", str(tmp_path / "nosuch"))
    assert process.returncode == 1
    assert process.stderr == f"gdev: {tmp_path}/nosuch: No such file or directory\n"


def test_a_daemon_that_is_started_gets_the_file_of_the_environment(
    daemon: Daemon, file: Path
) -> None:
    env = {"GDEV_CONFIG": str(file)}
    daemon.must("vgpu", "add", "old", "--memory", "8MiB")
    daemon.gdev("run", "--", "true", env=env)
    assert len(state(daemon)) == 3  # old, default: this daemon was there
    daemon.must("stop")
    process = daemon.gdev("run", "--vgpu", "a", "--", "/bin/echo", "ran", env=env)
    assert (process.returncode, process.stdout) == (0, "ran\n"), process.stderr
    assert [row[0] for row in state(daemon)[:-1]] == ["old", "default", "a", "b.c"]
    daemon.must("stop")


def test_no_daemon_is_started_with_a_file_that_is_wrong(daemon: Daemon, file: Path) -> None:
    daemon.must("stop")
    file.write_text("x = 1")
    process = daemon.gdev("run", "--", "/bin/echo", "ran", env={"GDEV_CONFIG": str(file)})
    assert (process.returncode, process.stdout) == (125, "")
    assert process.stderr == f"gdev: {file}: x: there is no such key\n"
    assert daemon.gdev("shm").returncode == 1


def test_apply_waits_for_a_daemon_that_it_does_not_start(daemon: Daemon, file: Path) -> None:
    assert daemon.must("apply", "--no-start", str(file)) != ""


def test_service_prints_a_unit(daemon: Daemon, file: Path) -> None:
    lines = daemon.must("service", "--config", str(file)).splitlines()
    programs = daemon.environment()["GDEV_PROGRAMS"]
    assert f'ExecStart="{programs}/gdevd" "{daemon.socket}"' in lines
    assert f'ExecStartPre="/bin/mkdir" "-p" "-m" "700" "{daemon.socket.parent}"' in lines
    (after,) = [line for line in lines if line.startswith("ExecStartPost=")]
    assert after.endswith(f'"apply" "--no-start" "{file}"')
    assert [line for line in lines if line.startswith("[")] == ["[Unit]", "[Service]", "[Install]"]
    assert "ExecStartPost" not in daemon.must("service")


def test_special_characters_in_a_units_paths(daemon: Daemon, tmp_path: Path) -> None:
    socket = tmp_path / '100% "of" $HOME'
    process = daemon.gdev("service", env={"GDEV_SOCKET": str(socket)})
    assert f'"{tmp_path}/100%% \\"of\\" $$HOME"' in process.stdout
