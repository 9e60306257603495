"""Ctrl-C ends a call that waits at once, and nothing is lost or freed that the call still uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import TIMEOUT_S, run_program

# Read byte by byte, it keeps the CPU device busy for minutes.
LONG_BYTES = 1 << 30

# Of a program whose main thread is interrupted as soon as `begun()`.
PRELUDE = f"""
import gc, os, signal, sys, threading, time
import numpy as np
import gpufs
from gpufs import linear

folder = sys.argv[1]
threads_before = len(os.listdir("/proc/self/task"))
mount = gpufs.mount(device="cpu", cache="1MiB", workers=1, cpu_threads=2)

def interrupt(begun):
    def wait():
        while not begun():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=wait, daemon=True).start()

def read_so_far():
    counts = mount.stats()
    return (counts["read_bytes"] + counts["direct_loads"] + counts["staged_loads"]
            + counts["bulk_loads"])

def interrupted(call):
    before = read_so_far()
    ended = False
    interrupt(lambda: read_so_far() > before)
    try:
        call()
        ended = True
        while True:
            time.sleep(1)  # it comes, but too late
    except KeyboardInterrupt:
        return not ended

def goes_on():
    before = mount.stats()["read_bytes"]
    while mount.stats()["read_bytes"] == before:
        time.sleep(0.01)
    return mount.stats()["read_bytes"] < {LONG_BYTES}

long = mount.array(folder + "/long", "u1")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with (tmp_path / "long").open("wb") as file:
        file.truncate(LONG_BYTES)
    (tmp_path / "short").write_bytes(b"content")
    return tmp_path


def run(folder: Path, program: str) -> str:
    return run_program(PRELUDE + program, folder)


def test_a_read_is_interrupted_and_its_mount_goes_on(folder: Path) -> None:
    program = """
assert interrupted(lambda: long[::-1])
assert goes_on()
with mount.open(folder + "/short") as short:
    print(bytes(short.read()))
with mount.open(folder + "/new", "w+b") as new:
    new.write(b"written")
print(open(folder + "/new").read())
"""
    assert run(folder, program) == "b'content'\nwritten\n"


def test_memory_lives_as_long_as_the_interrupted_call(folder: Path) -> None:
    program = """
out = np.empty(len(long), np.uint8)
before = sys.getrefcount(out)
assert interrupted(lambda: long.read(slice(None, None, -1), out=out))
print(sys.getrefcount(out) - before)
assert goes_on()
del out  # unmapped now, if nobody else has it
gc.collect()
assert goes_on()
"""
    assert run(folder, program) == "1\n"  # the call's


@pytest.mark.parametrize(
    "ending", ["long.close(); mount.close()", "mount.close(); long.close()", "del long, mount", ""]
)
def test_what_an_interrupted_call_uses_is_closed_without_waiting(folder: Path, ending: str) -> None:
    program = f"""
other = mount.open(folder + "/new", "w+b")
other.write(b"written")
assert interrupted(lambda: long[::-1])
assert goes_on()
file = long.file
{ending}
if "close" in {ending!r}:
    assert file.closed and mount.closed
    try:
        file.read()
    except ValueError as error:
        print(error)
"""
    said = run(folder, program)
    if "close" in ending:
        assert said == "the gpufs file is closed\n"
    assert (folder / "new").read_bytes() == b"written"  # closed as ever


def test_a_close_that_was_put_off_comes(folder: Path) -> None:
    program = """
size = 50_000  # it grows until the interrupt comes in time, however fast the machine is
while True:
    with open(folder + "/part", "wb") as made:
        made.truncate(size)
    part = mount.array(folder + "/part", "u1")
    if interrupted(lambda: part[::-1]):
        break
    part.close()
    size *= 4
part.close()
long.close()
mount.close()
while len(os.listdir("/proc/self/task")) > threads_before:
    time.sleep(0.05)
print("unmounted")
"""
    assert run(folder, program) == "unmounted\n"


def test_what_a_close_without_a_caller_loses_is_told_by_unmount(folder: Path) -> None:
    program = """
import resource

def part_of(size):
    with open(folder + "/part", "wb") as made:
        made.truncate(size)
    return mount.open(folder + "/part", "r+b")

long.close()

def thread_count():
    time.sleep(0.02)
    return len(os.listdir("/proc/self/task"))

# threads of calls that have returned may not have ended
threads = min(thread_count() for _ in range(50))
size = 50_000  # as above
while not interrupted(lambda: part_of(size).gather(np.arange(size)[::-1], 1)):
    size *= 4
size *= 16  # which is read long enough for what follows
part = part_of(size)
while not interrupted(lambda: part.gather(np.arange(size)[::-1], 1)):
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
part.write(b"lost", 2 * size)
try:
    part.close()
    while thread_count() > threads:
        pass
    mount.unmount()
except OSError as error:
    print(error.strerror)
"""
    assert run(folder, program) == "File too large\n"


def test_the_error_of_an_interrupted_call_stays_with_the_file(folder: Path) -> None:
    program = """
import errno
file = mount.open(folder + "/long")
os.truncate(folder + "/long", 1 << 20)
def is_interrupted(index):
    before = read_so_far()
    interrupt(lambda: read_so_far() > before)
    try:
        try:
            file.gather(index, 1)
        except OSError:
            while True:
                time.sleep(1)  # as above
    except KeyboardInterrupt as error:
        return error.__context__ is None
count = 50_000  # as above
while not is_interrupted(np.r_[1 << 29, np.arange(count) % 1000]):
    count *= 4
while True:
    try:
        file.wait()
        time.sleep(0.01)
    except OSError as error:
        print(errno.errorcode[error.errno])
        break
file.wait()
file.close()
"""
    assert run(folder, program) == "ENODATA\n"


def test_calls_of_other_threads_are_not_interrupted(folder: Path) -> None:
    (folder / "long").write_bytes(bytes(range(256)) * 400)
    program = """
found = []
def read():
    found.append(bytes(long[::-1]))
thread = threading.Thread(target=read)
before = read_so_far()
thread.start()
try:
    interrupt(lambda: read_so_far() > before)
    while True:
        time.sleep(1)
except KeyboardInterrupt:
    thread.join()
print(found[0] == (bytes(range(256)) * 400)[::-1])
"""
    assert run(folder, program) == "True\n"


def test_products_are_interrupted(folder: Path) -> None:
    program = """
before = read_so_far()
try:
    interrupt(lambda: read_so_far() > before)
    linear.matmul(
        mount, folder + "/long", folder + "/long", folder + "/out", dtype="f4", shape=(16384,) * 3
    )
except KeyboardInterrupt:
    print(sorted(os.listdir(folder)))
"""
    assert run(folder, program) == "['long', 'short']\n"


def test_any_handler_may_raise(folder: Path) -> None:
    program = """
class Ended(Exception): pass
def end(number, frame):
    raise Ended
signal.signal(signal.SIGINT, end)
calls = []
signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
try:
    interrupted(lambda: long[::-1])
except Ended:
    print("ended")
os.kill(os.getpid(), signal.SIGUSR1)
with mount.open(folder + "/short") as short:
    short.read()
print(len(calls))
"""
    assert run(folder, program) == "ended\n1\n"


# Every call at some moment, with what is written before and after in place.
STORM = """
class Interruption(BaseException): pass
armed = False
def interrupt(number, frame):
    if armed:
        raise Interruption
signal.signal(signal.SIGINT, interrupt)
ended = threading.Event()
def storm():
    rng = np.random.default_rng(int(sys.argv[2]))
    while not ended.wait(rng.exponential(0.002)):
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=storm).start()
content = np.arange(50_000, dtype="<i4")
content.tofile(folder + "/content")
interruptions = 0
for number in range(60):
    try:
        armed = True
        with mount.array(folder + "/content", "<i4") as array:
            picked = array[::-7]
            assert np.array_equal(picked, content[::-7])
        with mount.open(folder + "/new", "w+b") as file:
            file.write(content)
            file.fsync()
            assert np.array_equal(file.read(), content.view("u1"))
            file.truncate(100)
            assert file.stat().size == 100
        with gpufs.mount(device="cpu", cache="64KiB", workers=1, cpu_threads=1) as other:
            other.register_file(folder + "/content")
            other.synchronize()
        armed = False
    except Interruption:
        armed = False
        interruptions += 1
ended.set()
assert interruptions > 0
with mount.array(folder + "/content", "<i4") as array:
    assert np.array_equal(array[...], content)
mount.close()
print("good")
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_calls_survive_a_storm_of_interruptions(folder: Path, seed: str) -> None:
    assert run_program(PRELUDE + STORM, folder, seed) == "good\n"


# ---- Commands


@pytest.mark.parametrize(
    "program", [["-m", "gpufs"], ["-c", "from gpufs.__main__ import main; main()"]]
)
def test_a_command_that_is_still_imported_ends_quietly(tmp_path: Path, program: list[str]) -> None:
    # The first module that the command line imports stands in for all of them.
    (tmp_path / "typer.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, *program, "stat", "x"]
    done = subprocess.run(
        command, capture_output=True, timeout=TIMEOUT_S, check=False, env=environment
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 130)


def test_a_command_that_ignores_interrupts_goes_on(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)\n"
    )
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, '-m', 'gpufs', 'stat', 'x'])"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 7)


def test_words_from_a_pipe_are_interrupted(folder: Path) -> None:
    program = """
from gpufs import grep
os.mkfifo(folder + "/words")
def begun():
    global writer
    try:
        writer = os.open(folder + "/words", os.O_WRONLY | os.O_NONBLOCK)  # when it is being read
    except OSError:
        return False
    return True
interrupt(begun)
try:
    grep.Dictionary.read(folder + "/words")
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(folder, program) == "interrupted\n"


SLOW_FSYNC = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// That of a folder waits until there is a file `go` in it.
int fsync(int fd) {
  struct stat is;
  if (fstat(fd, &is) == 0 && S_ISDIR(is.st_mode)) {
    close(openat(fd, "begun", O_CREAT | O_WRONLY, 0600));
    while (faccessat(fd, "go", F_OK, 0) != 0) usleep(10000);
  }
  return (int)syscall(SYS_fsync, fd);
}
"""


def test_the_sync_of_a_folder_is_interrupted_and_goes_on(folder: Path) -> None:
    (folder / "slow.c").write_text(SLOW_FSYNC)
    built = folder / "slow.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-O1", "-xc", folder / "slow.c", "-o", built], check=True
    )
    program = """
interrupt(lambda: os.path.exists(folder + "/begun"))
try:
    mount.sync_folder(folder)
except KeyboardInterrupt:
    print("interrupted")
long.close()
mount.close()  # does not wait for it
open(folder + "/go", "x").close()
while len(os.listdir("/proc/self/task")) > threads_before:
    time.sleep(0.05)
print("ended")
"""
    said = run_program(PRELUDE + program, folder, LD_PRELOAD=str(built))
    assert said == "interrupted\nended\n"


@pytest.mark.parametrize("call", ["search", "count_lines"])
def test_a_search_is_left_behind_with_its_mount(folder: Path, call: str) -> None:
    program = f"""
from gpufs import grep
begun = []
interrupt(lambda: begun)
with mount:
    try:
        # As large as it takes minutes to search; a hole has no line, so that all of it is searched.
        os.truncate(folder + "/long", 1 << 40)
        grep.{call}(mount, grep.Dictionary(["word"]), [folder + "/long"], on_progress=begun.append)
    except KeyboardInterrupt:
        print("interrupted")
print("unmounted", mount.closed, flush=True)
os._exit(0)
"""
    assert run(folder, program) == "interrupted\nunmounted True\n"
