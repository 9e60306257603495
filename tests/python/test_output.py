"""Files that commands write: there whole or not at all, whatever ends the command, and never one that is read."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import gpufs
import numpy as np
import pytest
from gpufs import collage, linear
from gpufs._output import replacing
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
def test_what_is_read_is_not_replaced(run: Command, inputs: Path, arguments: tuple[str, ...], out: str) -> None:
    (inputs / "link.png").symlink_to("tiles/records")
    (inputs / "hard").hardlink_to(inputs / out)
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    for name in (out, "hard") if arguments[0] != "collage" else (out,):
        done = run(*arguments, "-o", name, "--device", "cpu", cwd=inputs)
        assert (done.stdout, done.returncode) == (b"", 2)
        assert done.stderr == f"gpufs: {name}: would be lost: it is one of the files that are read\n".encode()
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before


def test_a_library_user_is_told_so_too(inputs: Path) -> None:
    with (
        gpufs.mount(device="cpu", cache="16MiB") as mount,
        pytest.raises(OSError, match="would be lost") as caught,
    ):
        linear.matvec(mount, inputs / "a.npy", inputs / "x.npy", inputs / "x.npy")
    assert caught.value.filename == str(inputs / "x.npy")


# More than a minute of work for the twin, in a call that Python does not interrupt.
ENDLESS = {
    "matmul": ("matmul", "a", "a", "--shape", "6000x6000x6000", "-o", "out"),
    "build": ("collage", "build", "out", "--synthetic", "1000000"),
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_soon_and_leave_nothing(tmp_path: Path, what: str, number: signal.Signals) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(6000 * 6000 * 4)
    arguments = command_line(*ENDLESS[what])
    environment = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, env=environment) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while names(tmp_path) == ["a"] and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert time.monotonic() - start < 10
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
    subprocess.run([*command_line()[:1], b"-c", program], cwd=inputs, check=True, stdout=subprocess.DEVNULL)
