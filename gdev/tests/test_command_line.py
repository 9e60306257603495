"""The commands: their output, their errors, and how they end."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from . import segments
from .gdev_daemon import Daemon
from .simulated_gpu import TIMEOUT_S


def test_a_program_runs_as_without_gdev(daemon: Daemon) -> None:
    process = daemon.gdev("run", "--", "/bin/sh", "-c", "cat; echo out; echo err >&2; exit 7")
    assert (process.returncode, process.stdout, process.stderr) == (7, "out\n", "err\n")


def test_options_after_the_program_are_the_programs(daemon: Daemon) -> None:
    process = daemon.gdev("run", "/bin/echo", "--vgpu", "x", "-n")
    assert process.stdout == "--vgpu x -n\n"


def test_it_runs_in_its_virtual_gpu(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    program = str(daemon.gpu.kernels.with_name("linked"))
    process = daemon.gdev("run", "--vgpu", "a", "--", program, str(daemon.gpu.kernels))
    assert '"gdev": true' in process.stdout and process.returncode == 0


def test_without_a_name_there_is_no_limit(daemon: Daemon) -> None:
    daemon.gdev("run", "--", "/bin/true")
    assert daemon.must("vgpu", "list").splitlines()[1].split()[:3] == ["default", "no", "limit"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--", "nosuchprogram"], 127, "gdev: nosuchprogram: there is no such program"),
        (["--", "/etc/passwd"], 126, "gdev: /etc/passwd: "),
        (["--vgpu", "nosuch", "--", "true"], 125, "gdev: nosuch: there is no such virtual GPU"),
        (["--nosuch", "--", "true"], 2, "No such option"),
    ],
)
def test_what_cannot_be_run(daemon: Daemon, arguments: list[str], status: int, said: str) -> None:
    process = daemon.gdev("run", *arguments)
    assert (process.returncode, process.stdout) == (status, "")
    assert said in process.stderr
    assert status == 2 or process.stderr.count("\n") == 1


def test_a_program_never_runs_without_its_limit(daemon: Daemon, tmp_path: Path) -> None:
    """The loader passes over what it cannot preload, with a line that nobody reads."""
    spaced = tmp_path / "a folder"
    spaced.symlink_to(Path(daemon.environment()["GDEV_PROGRAMS"]))
    real = tmp_path / "another folder"
    real.mkdir()
    (real / "libcuda.so.1").touch()
    for folder in (tmp_path / "nosuch", real):
        process = daemon.gdev("run", "--", "/bin/echo", "ran", env={"GDEV_PROGRAMS": str(folder)})
        assert (process.returncode, process.stdout) == (125, ""), folder
    process = daemon.gdev("run", "--", "/bin/echo", "ran", env={"GDEV_PROGRAMS": str(spaced)})
    assert (process.returncode, process.stdout, process.stderr) == (0, "ran\n", "")


def test_relative_paths_are_those_of_the_command(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    names = {
        "GDEV_SOCKET": daemon.socket.name,
        "GDEV_DRIVER": os.path.relpath(daemon.gpu.driver, daemon.socket.parent),
        "GDEV_PROGRAMS": os.path.relpath(
            daemon.environment()["GDEV_PROGRAMS"], daemon.socket.parent
        ),
    }
    program = f"cd / && {daemon.gpu.kernels.with_name('linked')} {daemon.gpu.kernels}"
    process = daemon.gdev(
        "run", "--vgpu", "a", "--", "/bin/sh", "-c", program, env=names, cwd=daemon.socket.parent
    )
    assert '"gdev": true' in process.stdout, process.stderr


def test_a_driver_that_is_not_there_is_named(daemon: Daemon) -> None:
    process = daemon.gdev("run", "--", "true", env={"GDEV_DRIVER": "/nosuch/libcuda.so.1"})
    assert process.returncode == 125
    said = "gdev: /nosuch/libcuda.so.1: GDEV_DRIVER names a file that is not there\n"
    assert process.stderr == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("vgpu", "set", "nosuch", "--memory", "1MiB"), "nosuch: there is no such virtual GPU"),
        (("vgpu", "rm", "nosuch"), "nosuch: there is no such virtual GPU"),
        (("vgpu", "add", "a", "--memory", "1MiB"), "a: there is a virtual GPU of this name"),
        (("vgpu", "add", "b c", "--memory", "1MiB"), "b c: a name has 1 to 31 letters"),
        (("vgpu", "add", "b" * 32, "--memory", "1MiB"), "a name has 1 to 31 letters"),
        (("vgpu", "add", "b", "--memory", "0"), "a limit is 1 byte to 8 TiB"),
        (("vgpu", "add", "b", "--memory", "9TiB"), "a limit is 1 byte to 8 TiB"),
        (("vgpu", "add", "b", "--memory", "much"), "not a size: 'much'"),
    ],
)
def test_errors_are_one_line_that_says_what_is_wrong(
    daemon: Daemon, arguments: tuple[str, ...], said: str
) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "1MiB")
    process = daemon.gdev(*arguments)
    assert process.returncode in (1, 2) and process.stdout == ""
    assert process.stderr.startswith("gdev: ") and process.stderr.count("\n") == 1
    assert said in process.stderr


def test_a_virtual_gpu_in_use_is_not_removed(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program:
        program.does("init")
        assert daemon.must("ps").splitlines()[1].split()[:2] == [
            str(program.process.pid),
            "a",
        ]
        refused = daemon.gdev("vgpu", "rm", "a")
        said = "gdev: a: programs use it (gdev ps), or it holds shared memory (gdev shm)\n"
        assert (refused.returncode, refused.stderr) == (1, said)


def test_virtual_gpus_outlive_the_daemon(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    daemon.must("vgpu", "add", "b", "--memory", "none")
    daemon.must("vgpu", "rm", "a")
    daemon.must("stop")
    daemon.must("vgpu", "add", "c", "--memory", "1MiB")  # starts one
    daemon.must("stop")
    rows = daemon.must("vgpu", "list").splitlines()[1:]
    daemon.must("stop")
    assert [row.split()[:2] for row in rows] == [["b", "no"], ["c", "1"]]


def test_a_stop_loses_no_shared_memory_unasked(shared: Daemon) -> None:
    with segments.program(shared) as one:
        one.does("get", 7, 4096, segments.MAKE)
    failed = shared.gdev("stop")
    said = "gdev: memory shared by keys would be lost (gdev shm: 1); --force ends it too\n"
    assert (failed.returncode, failed.stderr) == (1, said)
    assert len(shared.must("shm").splitlines()) == 2
    shared.must("stop", "--force")


@pytest.mark.parametrize(
    "arguments",
    [
        ("vgpu", "set", "a", "--priority", "3"),
        ("vgpu", "rm", "a"),
        ("vgpu", "list"),
        ("gpu", "set", "--spare", "1MiB"),
        ("gpu", "list", "--json"),
    ],
)
def test_commands_about_what_is_kept_start_the_daemon(
    daemon: Daemon, arguments: tuple[str, ...]
) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    daemon.must("stop")
    daemon.must(*arguments)
    daemon.must("stop")  # one has been started


def test_without_a_daemon_nothing_runs(daemon: Daemon) -> None:
    daemon.must("stop")
    said = "no daemon runs; programs that it left go on (gdev run, vgpu, gpu and apply start one)\n"
    assert daemon.must("ps") == said
    assert daemon.must("top", "--once") == said
    assert json.loads(daemon.must("top", "--json"))["programs"] == []
    for arguments in (("pause", "1"), ("shm",), ("stop",), ("metrics", "--once")):
        failed = daemon.gdev(*arguments)
        assert (failed.returncode, failed.stdout) == (1, "")
        said = "gdev: no daemon runs (gdev run, vgpu, gpu and apply start one)\n"
        assert failed.stderr == said


def test_all_settings_are_listed(daemon: Daemon) -> None:
    policy = ("--reserve", "2MiB", "--priority", "-3", "--when-full", "wait", "--end-after", "7")
    daemon.must("vgpu", "add", "a", "--memory", "8MiB", *policy, "--users", "everybody")
    daemon.must("vgpu", "add", "b", "--memory", "none")
    user = pwd.getpwuid(os.getuid()).pw_name
    found = json.loads(daemon.must("vgpu", "list", "--json"))
    unused = {"used": 0, "shared": 0, "overhead": 0, "programs": 0, "refused": 0}
    assert found == [
        {
            "vgpu": "a",
            "memory": 8 << 20,
            "reserve": 2 << 20,
            "priority": -3,
            "when_full": "wait",
            "end_after": 7,
            "users": "everybody",
        }
        | unused,
        {
            "vgpu": "b",
            "memory": None,
            "reserve": 0,
            "priority": 0,
            "when_full": "swap",
            "end_after": 0,
            "users": user,
        }
        | unused,
    ]
    rows = [line.split() for line in daemon.must("vgpu", "list").splitlines()]
    assert rows[1:] == [
        [*["a", "8", "MiB", "2", "MiB", "-3", "wait", "7", "s", "everybody", "0", "B", "0", "0"]],
        [*f"b no limit 0 B 0 swap never {user} 0 B 0 0".split()],
    ]
    daemon.must("vgpu", "set", "a", "--users", "54321")
    daemon.must("vgpu", "set", "b", "--users", "everybody", "--memory", "8MiB")
    changed = json.loads(daemon.must("vgpu", "list", "--json"))
    assert [one["users"] for one in changed] == ["54321", "everybody"]
    refused = daemon.gdev("vgpu", "set", "a", "--users", "no-one")
    assert (refused.returncode, refused.stderr) == (2, "gdev: there is no such user: no-one\n")
    sizes = ("--spare", "1MiB", "--host-memory", "3MiB", "--swap-files", "4MiB")
    daemon.must("gpu", "set", *sizes)
    assert json.loads(daemon.must("gpu", "list", "--json")) == {
        "settings": {
            "memory": None,
            "spare": 1 << 20,
            "host_memory": 3 << 20,
            "swap_files": 4 << 20,
        },
        "gpus": [],
    }
    rows = [line.split() for line in daemon.must("gpu", "list").splitlines()]
    assert rows[1] == ["no", "limit", "1", "MiB", "3", "MiB", "4", "MiB"]


def test_the_driver_is_found_behind_gdevs_own_library(daemon: Daemon) -> None:
    """Programs that use libgdev.so name its folder, where gdev's libcuda.so.1 lies too."""
    folders = f"{daemon.gpu.programs}:{daemon.gpu.driver.parent}"
    done = subprocess.run(
        [sys.executable, "-c", "from gdev import _files; print(_files.driver())"],
        env=daemon.environment() | {"LD_LIBRARY_PATH": folders, "GDEV_DRIVER": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == f"{daemon.gpu.driver}\n"


def test_a_driver_that_cannot_be_loaded_is_an_error_of_one_line(
    daemon: Daemon, tmp_path: Path
) -> None:
    """Here one that ends the process that tries it."""
    source = tmp_path / "ends.c"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { _Exit(7); }\n"
    )
    flags = ["-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1"]
    subprocess.run(["gcc", *flags, source], check=True, timeout=TIMEOUT_S)
    folders = f"{daemon.gpu.programs}:{tmp_path}"
    done = daemon.gdev("run", "--", "true", env={"LD_LIBRARY_PATH": folders, "GDEV_DRIVER": ""})
    said = "loading it failed (exit status 7); name the driver in GDEV_DRIVER"
    assert (done.returncode, done.stderr) == (125, f"gdev: libcuda.so.1: {said}\n")


def test_what_programs_have_is_listed_as_json_too(daemon: Daemon) -> None:
    assert json.loads(daemon.must("ps", "--json")) == []
    daemon.must("vgpu", "add", "a", "--memory", "16MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.does("alloc", 8 << 20)
        program.says("alloc", 32 << 20)
        (one,) = json.loads(daemon.must("ps", "--json"))
        assert one["gpu"] is not None
        assert one | {"gpu": 0} == {
            "process": program.process.pid,
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "vgpu": "a",
            "gpu": 0,
            "state": "on",
            "used": 8 << 20,
            "refused": 1,
            "overhead": 0,
            "swapped": 0,
            "wired": 0,
        }
        said = daemon.must("pause", str(program.process.pid))
        about = "8 MiB leave the GPU, 0 B stay (gdev ps: how far it is)"
        assert said == f"{program.process.pid}: {about}\n"
        daemon.must("resume", str(program.process.pid))
    daemon.must("stop")
    assert daemon.must("ps", "--json") == "[]\n"


def test_shared_memory_is_removed_by_the_text_of_its_key(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a", "shared_memory") as program:
        program.does("init")
        of_text = subprocess.run(
            [sys.executable, "-c", "from gdev import _shm; print(_shm.key_of('weights'))"],
            env=daemon.environment(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        for key in (int(of_text.stdout), 5):
            program.does("get", key, 4096, 0o1640)  # IPC_CREAT
        daemon.must("shm", "rm", "--key", "weights")
        (left,) = json.loads(daemon.must("shm", "--json"))
        assert left["key"] == 5
        for key in ("weights", "5"):
            refused = daemon.gdev("shm", "rm", "--key", key)
            said = "there is no such segment (gdev shm)"
            assert (refused.returncode, refused.stderr) == (1, f"gdev: {key}: {said}\n")
        for words in ((), (str(left["id"]), "--key", "weights")):
            refused = daemon.gdev("shm", "rm", *words)
            said = "name the segment by its id (gdev shm) or its --key"
            assert (refused.returncode, refused.stderr) == (2, f"gdev: {said}\n")


def test_gpus_are_shown_as_nvidia_smi_numbers_them(shared: Daemon, tmp_path: Path) -> None:
    with segments.program(shared) as one:
        one.does("get", 7, 4096, segments.MAKE)
        number = shared.gpu.memory.stat().st_ino  # of the simulated GPU
        uuid = str(UUID(bytes=number.to_bytes(8, "little") + bytes(8)))
        query = tmp_path / "nvidia-smi"
        query.write_text(f"#!/bin/sh\necho '3, GPU-{uuid}'\n")
        query.chmod(0o755)
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        shown = shared.gdev("gpu", "list", "--json", env=path)
        (gpu,) = json.loads(shown.stdout)["gpus"]
        assert (gpu["index"], gpu["uuid"]) == (3, f"GPU-{uuid}")
        rows = shared.gdev("gpu", "list", env=path).stdout.splitlines()
        assert rows[-1].split()[1] == "3"
        (gpu,) = json.loads(shared.must("gpu", "list", "--json"))["gpus"]
        assert gpu["index"] is None and gpu["uuid"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("vgpu", "set", "a", "--reserve", "9MiB"), "a: --reserve is at most the virtual GPU's"),
        (("vgpu", "set", "a", "--memory", "1MiB"), "a: --reserve is at most the virtual GPU's"),
        (("vgpu", "set", "a", "--memory", "0"), "a limit is 1 byte to 8 TiB, or 'none'"),
        (("vgpu", "set", "a", "--reserve", "-1"), "not a size: '-1'"),
        (("vgpu", "set", "a", "--reserve", "1PiB"), "a: --reserve is at most 8 TiB"),
        (("vgpu", "set", "a", "--priority", "1001"), "--priority is -1000 to 1000"),
        (("vgpu", "set", "a", "--end-after", "-1"), "--end-after is 0 to 1000000000"),
        (("gpu", "set", "--memory", "1MiB", "--spare", "1MiB"), "--spare is less than"),
        (("gpu", "set", "--host-memory", "1PiB"), "--host-memory and --swap-files are at most"),
    ],
)
def test_impossible_settings_are_refused(
    daemon: Daemon, arguments: tuple[str, ...], said: str
) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB", "--reserve", "2MiB")
    before = daemon.must("vgpu", "list") + daemon.must("gpu", "list")
    process = daemon.gdev(*arguments)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("gdev: ") and process.stderr.count("\n") == 1
    assert said in process.stderr
    assert daemon.must("vgpu", "list") + daemon.must("gpu", "list") == before


def test_settings_that_no_gpu_can_fulfil(daemon: Daemon) -> None:
    """They are accepted while no GPU is known, and said to be wrong as soon as one is."""
    add = ("vgpu", "add", "--memory", "none", "--reserve")
    daemon.must(*add, "40MiB", "a")
    daemon.must(*add, "40MiB", "b")
    daemon.must("gpu", "set", "--spare", "64MiB")
    with daemon.program("a") as program:
        program.does("init")
        program.says("alloc", 1 << 21)
        process = daemon.gdev("doctor")
        for said in (
            "fail  settings: --reserve of all virtual GPUs: 80 MiB, and programs may have 64 MiB",
            "fail  settings: --spare: 64 MiB, and programs may have 64 MiB",
        ):
            assert said in process.stdout
    for arguments in (
        (*add, "1MiB", "c"),
        ("vgpu", "set", "a", "--reserve", "41MiB"),
        ("gpu", "set", "--spare", "65MiB"),
    ):
        refused = daemon.gdev(*arguments)
        assert refused.returncode == 2 and "programs may have of the GPU, 64 MiB" in refused.stderr
    daemon.must("vgpu", "set", "a", "--reserve", "39MiB")  # less of what is wrong
    daemon.must("gpu", "set", "--spare", "63MiB")
    assert daemon.process is not None and daemon.process.stderr is not None
    daemon.process.terminate()
    lines = daemon.process.communicate(timeout=TIMEOUT_S)[1].splitlines()
    assert lines == [
        "gdevd: the --reserve of all virtual GPUs is 80.0 MiB, and programs may have 64.0 MiB of"
        " the GPU",
        "gdevd: --spare is 64.0 MiB, and programs may have 64.0 MiB of the GPU",
    ]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_daemon(daemon: Daemon, end: signal.Signals) -> None:
    assert daemon.process is not None
    daemon.process.send_signal(end)
    daemon.process.communicate(timeout=TIMEOUT_S)
    assert daemon.process.returncode == 0
    assert not daemon.socket.exists()


def test_shared_memory_is_listed_and_removed(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a", "shared_memory") as program:
        program.does("init")
        (number,) = program.does("get", 255, 1 << 20, 0o1640)  # IPC_CREAT
        (private,) = program.does("get", 0, 2 << 20, 0o600)
        program.does("at", number, 0)
        rows = [line.split() for line in daemon.must("shm").splitlines()]
        user = pwd.getpwuid(os.getuid()).pw_name
        assert rows == [
            ["ID", "KEY", "SIZE", "OWNER", "MODE", "ATTACHED", "VGPU"],
            [str(number), "0xff", "1", "MiB", user, "640", "1", "a"],
            [str(private), "private", "2", "MiB", user, "600", "0", "a"],
        ]
        shown = json.loads(daemon.must("shm", "--json"))
        same = {"owner": user, "vgpu": "a", "removed": False}
        assert shown == [
            {"id": number, "key": 255, "size": 1 << 20, "mode": 0o640, "attached": 1} | same,
            {"id": private, "key": None, "size": 2 << 20, "mode": 0o600, "attached": 0} | same,
        ]
        daemon.must("shm", "rm", str(private))
        daemon.must("shm", "rm", str(number))
        assert daemon.must("shm").splitlines()[1].split()[1] == "removed"
        (removed,) = json.loads(daemon.must("shm", "--json"))
        assert (removed["key"], removed["removed"]) == (None, True)
        for other, said in (
            (number, "it has been removed"),
            (1, "there is no such segment (gdev shm)"),
        ):
            refused = daemon.gdev("shm", "rm", str(other))
            assert (refused.returncode, refused.stderr) == (1, f"gdev: {other}: {said}\n")


@pytest.mark.parametrize("command", [("vgpu", "set", "a"), ("gpu", "set")])
def test_a_change_of_nothing_is_an_error(daemon: Daemon, command: tuple[str, ...]) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    done = daemon.gdev(*command)
    assert done.returncode == 2 and "nothing to change" in done.stderr
