"""What several test files use. All of it but ``fs`` runs on the CPU device."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import gpufs
import pytest
from forked_commands import Commands
from gpufs import _core
from gpufs.bench import _world

from .file_cases import CONTENT

TIMEOUT_S = 60

Command = Callable[..., "subprocess.CompletedProcess[bytes]"]

# Python 3.12 and later warn; what happens after such a fork is what these tests are about.
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No write of this process goes beyond byte `size` of any file; Python has SIGXFSZ ignored."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def in_child(work: object) -> str:
    """Runs `work()` in a forked process. Returns its result, or the exception that it raised."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.write(writer, f"returned {work()}".encode())  # type: ignore[operator]
        except BaseException as error:
            os.write(writer, "".join(traceback.format_exception_only(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    assert status == 0
    return text.strip()


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Restores SIGINT and SIGHUP, which a background shell or nohup sets to ignored."""
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangups = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupts)
    signal.signal(signal.SIGHUP, hangups)


@pytest.fixture
def mount() -> Iterator[gpufs.Mount]:
    with gpufs.mount(device="cpu", cache="4MiB", cpu_threads=2, workers=1) as made:
        yield made


# With a cache that is smaller than CONTENT.
SHAPES = [(512, "64KiB"), (4096, "128KiB"), (65536, "512KiB")]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"pages of {shape[0]}")
def small(request: pytest.FixtureRequest) -> Iterator[gpufs.Mount]:
    page, cache = request.param
    with gpufs.mount(device="cpu", page=page, cache=cache, cpu_threads=2, workers=1) as made:
        assert made.cache_bytes < len(CONTENT)
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with CONTENT."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def fs(request: pytest.FixtureRequest) -> Iterator[gpufs.Mount]:
    """A mount of each device in turn, which the tests of a file share."""
    if request.param == "cuda" and not _core.examine_cuda()["gpus"]:
        pytest.skip("no GPU here")
    with gpufs.mount(device=request.param, cache="16MiB", page="4KiB") as made:
        yield made


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def run_program(program: str, *arguments: str | os.PathLike[str], **environment: str) -> str:
    """Runs a Python program and returns its output. It must succeed without standard error."""
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        program,
        *map(os.fspath, arguments),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | environment,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def command_line(*arguments: str | bytes | os.PathLike[str]) -> list[bytes]:
    return [os.fsencode(word) for word in (sys.executable, "-m", "gpufs", *arguments)]


def startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python reads of its environment before it runs a program."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LC_")) or name == "LANG"
    }


STARTED_WITH = startup_variables(os.environ)


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Forks commands of gpufs, which have its modules."""
    made = Commands("gpufs", ["stat"], {})
    yield made
    made.end()


@pytest.fixture
def run(commands: Commands) -> Command:
    """Runs the command line; standard error is no terminal.

    A command with a prefix, or with an environment in which Python itself would behave otherwise,
    is a new interpreter.
    """

    def command(
        *arguments: str | bytes | os.PathLike[str],
        stdin: bytes = b"",
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        environment = dict(os.environ if env is None else env)
        if not prefix and startup_variables(environment) == STARTED_WITH:
            return commands.run(
                [os.fsdecode(word) for word in arguments],
                environment=environment,
                timeout_s=TIMEOUT_S,
                cwd=cwd,
                stdin=stdin,
            )
        return subprocess.run(
            [*map(os.fsencode, prefix), *command_line(*arguments)],
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
            cwd=cwd,
        )

    return command


@pytest.fixture(scope="session")
def bench_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of content of `gpufs bench` that is so old that no run has to wait for it."""
    path = tmp_path_factory.mktemp("bench") / "file"
    _core.bench_write_content(os.fsencode(path), 0, 4 << 20)
    time.sleep(_world.SETTLING_S)
    return path


@pytest.fixture
def words(tmp_path: Path) -> Path:
    file = tmp_path / "words"
    file.write_text("alpha\nbeta\ngamma\n")
    return file


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with files whose matches are known: see TREE_LINES."""
    root = tmp_path / "tree"
    (root / "below").mkdir(parents=True)
    (root / "b").write_text("alpha beta alpha\n")
    (root / "a").write_text("gamma, gamma; gammas\n")
    (root / "below" / "c").write_text("beta\n" * 10)
    (root / "nothing").write_text("nothing to see here\n")
    return root


def tree_lines(root: Path) -> bytes:
    """The output of a search of `tree` for `words`."""
    found = (("a", "gamma", 2), ("b", "alpha", 2), ("b", "beta", 1), ("below/c", "beta", 10))
    return b"".join(os.fsencode(f"{root}/{path}\t{word}\t{count}\n") for path, word, count in found)
