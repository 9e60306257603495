"""Files that commands write: complete or absent after any end, and never one of the inputs."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs import collage, linear
from gpufs._output import replacing, replacing_folder
from PIL import Image

from .conftest import TIMEOUT_S, Command, command_line, names


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    link, dangling = tmp_path / "link", tmp_path / "dangling"
    target.write_text("before")
    link.symlink_to("folder/target")
    dangling.symlink_to("folder/new")
    for path, place in ((link, target), (dangling, tmp_path / "folder" / "new")):
        with replacing(path) as part:
            assert Path(part).parent == place.parent
            Path(part).write_text("after")
        assert path.is_symlink()
        assert place.read_text() == "after"
    assert names(tmp_path / "folder") == ["new", "target"]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o444, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "target"
    target.write_text("before")
    target.chmod(mode)
    with replacing(target) as part:
        assert mode_of(Path(part)) == 0o600  # nobody else reads what is half written
        Path(part).write_text("after")
    assert (target.read_text(), mode_of(target)) == ("after", mode)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_new_files_and_folders_have_the_permissions_of_any(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with replacing(tmp_path / "file"):
            pass
        with replacing_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == 0o666 & ~mask
    assert mode_of(tmp_path / "folder") == 0o777 & ~mask


def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    target = tmp_path / "target"
    target.touch(mode=0o640)
    os.chown(target, 1234, 5678)
    with replacing(target):
        pass
    found = target.stat()
    assert (found.st_uid, found.st_gid, mode_of(target)) == (1234, 5678, 0o640)


def test_an_empty_folder_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    with replacing_folder(tmp_path / "folder") as part:
        (Path(part) / "file").touch()
    assert mode_of(tmp_path / "folder") == 0o700
    assert names(tmp_path / "folder") == ["file"]


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX access control list as its extended attribute has it: tags, permissions and who."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_an_access_control_list_stays(tmp_path: Path) -> None:
    target, name = tmp_path / "target", "system.posix_acl_access"
    target.touch()
    nobody = 0xFFFFFFFF
    # The group's bits of the mode are the mask's: without the list the group could write.
    acl = access_list(
        (1, 6, nobody), (2, 6, os.getuid() + 1), (4, 0, nobody), (16, 6, nobody), (32, 0, nobody)
    )
    try:
        os.setxattr(target, name, acl)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error.strerror}")
    with replacing(target):
        pass
    assert os.getxattr(target, name) == acl
    assert mode_of(target) == 0o660


def test_a_file_with_other_names_is_not_parted_from_them(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("before")
    (tmp_path / "other").hardlink_to(target)
    with pytest.raises(OSError, match="has 2 names") as caught, replacing(target):
        pass
    assert caught.value.filename == str(target)
    assert (target.stat().st_nlink, target.read_text(), names(tmp_path)) == (
        2,
        "before",
        ["other", "target"],
    )


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, object]] = []
    for call, own in (("fsync", os.fsync), ("replace", os.replace), ("rename", os.rename)):

        def record(*arguments: Any, call: str = call, own: Callable[..., None] = own) -> None:
            seen = arguments[0]
            done.append(
                (
                    call,
                    os.fstat(seen).st_ino
                    if isinstance(seen, int)
                    else Path(str(seen)).stat().st_ino,
                )
            )
            own(*arguments)

        monkeypatch.setattr(os, call, record)
    above = tmp_path.stat().st_ino
    with replacing(tmp_path / "file"):
        pass
    inode = (tmp_path / "file").stat().st_ino
    assert done == [("fsync", inode), ("replace", inode), ("fsync", above)]
    done.clear()
    with replacing_folder(tmp_path / "folder") as part:
        (Path(part) / "inner").mkdir()
        (Path(part) / "inner" / "file").touch()
    folder, inner = (
        (tmp_path / "folder").stat().st_ino,
        (tmp_path / "folder" / "inner").stat().st_ino,
    )
    file = (tmp_path / "folder" / "inner" / "file").stat().st_ino
    assert done == [
        *(("fsync", one) for one in (file, inner, folder)),
        ("rename", folder),
        ("fsync", above),
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from gpufs._output import replacing, replacing_folder
with (
    replacing(sys.argv[1] + "/out.npy") as part,
    replacing_folder(sys.argv[1] + "/folder") as folder,
):
    Path(part).write_text("half")
    (Path(folder) / "file").write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    # Not made by gpufs, or of another file.
    others = [".out.npy.12345678.part", ".out.npy.old.gpufs-abcdefgh.part", ".folder.gpufs-.part"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".out.npy.gpufs-linkname.part").symlink_to(others[0])
    expected = sorted([*others, ".out.npy.gpufs-linkname.part", "folder", "out.npy"])
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        left = set(names(tmp_path)) - set(expected)
        assert len(left) == 2
        for _ in range(2):
            with replacing(tmp_path / "out.npy"):
                pass
            assert left < set(names(tmp_path))  # somebody writes them
        process.kill()
        process.wait(TIMEOUT_S)
        assert left < set(names(tmp_path))
    with replacing(tmp_path / "out.npy"), replacing_folder(tmp_path / "folder"):
        pass
    assert names(tmp_path) == expected


def test_many_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(20):
            with replacing(tmp_path / "out") as part:
                Path(part).write_text(str(number) * 1000)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    assert names(tmp_path) == ["out"]
    assert len(set((tmp_path / "out").read_text())) == 1


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A square matrix, a vector, and a dataset with a picture."""
    np.save(tmp_path / "a.npy", np.eye(32, dtype=np.float32))
    np.save(tmp_path / "x.npy", np.ones(32, np.float32))
    collage.build(tmp_path / "tiles", synthetic=50)
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "p.png")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("matvec", "a.npy", "x.npy"), "a.npy"),
        (("matvec", "a.npy", "x.npy"), "x.npy"),
        (("matmul", "a.npy", "a.npy"), "a.npy"),
        (("search", "-q", "a.npy", "-d", "a.npy", "--top", "1"), "a.npy"),
        (("search", "-q", "a.npy", "-d", "tiles/records", "--top", "1"), "tiles/records"),
        (("collage", "p.png", "-d", "tiles"), "p.png"),
        (("collage", "p.png", "-d", "tiles"), "link.png"),  # to the dataset's records
    ],
)
def test_what_is_read_is_not_replaced(
    run: Command, inputs: Path, arguments: tuple[str, ...], out: str
) -> None:
    (inputs / "link.png").symlink_to("tiles/records")
    (inputs / "hard").hardlink_to(inputs / out)
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    for name in (out, "hard") if arguments[0] != "collage" else (out,):
        done = run(*arguments, "-o", name, "--device", "cpu", cwd=inputs)
        assert (done.stdout, done.returncode) == (b"", 2)
        assert (
            done.stderr
            == f"gpufs: {name}: would be lost: it is one of the files that are read\n".encode()
        )
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before


def test_a_library_user_is_told_so_too(inputs: Path) -> None:
    with (
        gpufs.mount(device="cpu", cache="16MiB") as mount,
        pytest.raises(OSError, match="would be lost") as caught,
    ):
        linear.matvec(mount, inputs / "a.npy", inputs / "x.npy", inputs / "x.npy")
    assert caught.value.filename == str(inputs / "x.npy")


# More than a minute of work for the CPU device, in a call that Python does not interrupt.
ENDLESS = {
    "matmul": ("matmul", "a", "a", "--shape", "6000x6000x6000", "-o", "out"),
    "build": ("collage", "build", "out", "--synthetic", "1000000"),
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_soon_and_leave_nothing(
    tmp_path: Path, what: str, number: signal.Signals
) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(6000 * 6000 * 4)
    arguments = command_line(*ENDLESS[what])
    environment = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        arguments, cwd=tmp_path, stderr=subprocess.PIPE, env=environment
    ) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while names(tmp_path) == ["a"] and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (errors, process.returncode) == (b"", 128 + number)
    assert names(tmp_path) == ["a"]


def test_who_ignores_a_signal_goes_on_ignoring_it(run: Command, inputs: Path) -> None:
    done = run("matvec", "a.npy", "x.npy", "-o", "y.npy", prefix=["nohup"], cwd=inputs)
    assert done.returncode == 0
    program = (
        "import signal, gpufs.cli as c; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "c.main(['stat', 'a.npy']); assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN; "
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL"
    )
    assert run("--version").returncode == 0
    subprocess.run(
        [*command_line()[:1], b"-c", program], cwd=inputs, check=True, stdout=subprocess.DEVNULL
    )
