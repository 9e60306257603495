"""A path is opened again while older files of that path are open, or are still being closed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import gpufs
import pytest

from .conftest import run_program

# Writes of the service wait until there is a file `go` in the folder.
SLOW_WRITES = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t pwrite64(int fd, const void* from, size_t bytes, off_t offset) {
  int folder = open(getenv("SLOW_WRITES"), O_RDONLY | O_DIRECTORY);
  close(openat(folder, "begun", O_CREAT | O_WRONLY, 0600));
  while (faccessat(folder, "go", F_OK, 0) != 0) usleep(1000);
  close(folder);
  return syscall(SYS_pwrite64, fd, from, bytes, offset);
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  return pwrite64(fd, from, bytes, offset);
}
"""

PRELUDE = """
import os, signal, sys, threading, time
import gpufs

folder, mode = sys.argv[1:]
path, begun, go = (os.path.join(folder, name) for name in ("log", "begun", "go"))
mount = gpufs.mount(device="cpu", cache="4MiB", workers=1, cpu_threads=2, maps_files=False)
file = mount.open(path, mode)
file.write(b"older")

def wait_until_it_begins():
    while not os.path.exists(begun):
        time.sleep(0.001)
"""

# Each begins to close the only file, and defines `end`, which waits until it is closed.
CLOSED = """
closing = threading.Thread(target=file.close)
closing.start()
wait_until_it_begins()
end = closing.join
"""
GARBAGE = """
files = [file]
del file
closing = threading.Thread(target=files.clear)
closing.start()
wait_until_it_begins()
end = closing.join
"""
INTERRUPTED = """
def interrupt():
    wait_until_it_begins()
    os.kill(os.getpid(), signal.SIGINT)
interrupter = threading.Thread(target=interrupt)
threads = len(os.listdir("/proc/self/task"))
interrupter.start()
try:
    file.close()
except KeyboardInterrupt:
    interrupter.join()
def end():
    while len(os.listdir("/proc/self/task")) > threads:
        time.sleep(0.01)
"""

REOPENED = """
os.rename(path, path + ".1")
late = threading.Timer(3, lambda: open(go, "x").close())  # an open of the older file would wait
late.start()
again = mount.open(path, mode)
again.write(b"newer!")
late.cancel()
open(go, "w").close()
again.close()
end()
mount.unmount()
print(mount.file_errors())
"""


@pytest.mark.parametrize("mode", ["wb", "w+b", "ab"])
@pytest.mark.parametrize("ending", [CLOSED, GARBAGE, INTERRUPTED], ids=["close", "del", "ctrl-c"])
def test_a_file_that_is_being_closed_is_neither_emptied_nor_written(
    tmp_path: Path, ending: str, mode: str
) -> None:
    source, built = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_WRITES)
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", "-xc", source, "-o", built], check=True)
    said = run_program(
        PRELUDE + ending + REOPENED,
        tmp_path,
        mode,
        LD_PRELOAD=str(built),
        SLOW_WRITES=str(tmp_path),
    )
    assert said == "FileErrors(errors=[], dropped=0)\n"
    assert (tmp_path / "log.1").read_bytes() == b"older"
    assert (tmp_path / "log").read_bytes() == b"newer!"


# ---- Opens for reading


@pytest.mark.parametrize("by_mount", [True, False], ids=["by the mount", "by others"])
def test_a_reader_that_outlives_the_writer_hides_no_later_change(
    mount: gpufs.Mount, tmp_path: Path, by_mount: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"A" * 4096)
    with mount.open(path, "r+b") as writer:
        writer.write(b"B" * 10)
        reader = mount.open(path)
        assert reader.read(12).tobytes() == b"B" * 10 + b"A" * 2
    with mount.open(path, "r+b") if by_mount else path.open("r+b") as writer:
        writer.write(b"C" * 8192)
    with mount.open(path) as later:
        assert later.size() == 8192
        assert later.read().tobytes() == b"C" * 8192
    reader.close()


def test_a_path_that_is_replaced_while_its_file_is_written_is_opened_as_the_new_file(
    mount: gpufs.Mount, tmp_path: Path
) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"A" * 4096)
    with mount.open(path, "r+b") as writer, mount.open(path) as old:
        writer.write(b"B" * 10)
        with mount.open(path) as same:  # the writer's bytes, not in the file yet
            assert same.read(10).tobytes() == b"B" * 10
        other.write_bytes(b"new")
        other.replace(path)
        with mount.open(path) as new:
            assert new.stat().inode == path.stat().st_ino
            assert new.read().tobytes() == b"new"
        assert old.read(10).tobytes() == b"B" * 10


@pytest.mark.parametrize("rooted", [True, False])
def test_any_number_of_versions_can_be_open(tmp_path: Path, rooted: bool) -> None:
    path = tmp_path / "file"
    given, root = (path.name, {"root": tmp_path}) if rooted else (path, {})
    with gpufs.mount(device="cpu", cache="4MiB", workers=1, cpu_threads=2, **root) as mount:
        files = []
        for size in range(1, 40):
            path.write_bytes(b"%d" % (size % 10) * size)
            files.append(mount.open(given))
            os.utime(path, ns=(size, size))  # the next open shares no state with this file
            files.append(mount.open(given))
        for number, file in enumerate(files):
            size = number // 2 + 1
            assert file.read().tobytes() == b"%d" % (size % 10) * size
