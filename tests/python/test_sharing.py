"""Files for other processes, by pickle, and for libraries that need files of `io`."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs._device import DeviceArray

from .array_files import npy, safetensors, same
from .conftest import TIMEOUT_S

CONTENT = np.random.default_rng(4).integers(0, 256, 100_000, np.uint8).tobytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


# ---- Pickle

WORKER = """
import json, pickle, sys
import numpy as np
found = pickle.load(sys.stdin.buffer)
array, plain, tensor = found["array"], found["file"], found["tensor"]
print(json.dumps([
    np.asarray(array[[3, 1]]).tolist(), bytes(plain.read(5, 7)).hex(),
    np.asarray(tensor[...]).tolist(),
    plain.name, array.file.mount is plain.mount, array.file.mount.device,
    array.file.mount.options["page_bytes"], array.file.mount.options["cache_bytes"],
]))
"""


@pytest.mark.parametrize("rooted", [False, True])
def test_another_process_opens_the_same_files(
    tmp_path: Path, file: Path, rooted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(20).reshape(5, 4)
    npy(tmp_path / "array.npy", rows)
    safetensors(tmp_path / "model.safetensors", {"other": rows, "bias": np.arange(3, dtype="<f4")})
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {
        "device": "cpu",
        "cache": "1MiB",
        "page": 8192,
        "workers": 1,
        "cpu_threads": 2,
    }
    with (
        gpufs.mount(**options, **({"root": "."} if rooted else {})) as mount,
        mount.array("array.npy") as array,
        mount.open("file") as plain,
        mount.array("model.safetensors", name="bias") as tensor,
    ):
        sent = pickle.dumps({"array": array, "file": plain, "tensor": tensor})
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=sent,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd="/",
    )
    assert done.stderr == b""
    assert json.loads(done.stdout) == [
        *(rows[[3, 1]].tolist(), CONTENT[7:12].hex(), [0, 1, 2]),
        *("file" if rooted else str(file), True, "cpu", 8192, 1 << 20),
    ]


def test_what_another_process_cannot_have_is_refused(mount: gpufs.Mount, file: Path) -> None:
    for mode in ("wb", "r+b", "ab"):
        with (
            mount.open(file.with_name("written"), "w+b" if mode == "r+b" else mode) as opened,
            pytest.raises(TypeError, match="written: open for writing"),
        ):
            pickle.dumps(opened)
    with pytest.raises(TypeError, match="only in its process"):
        pickle.dumps(mount.device_ref())
    array = DeviceArray.__new__(DeviceArray)
    with pytest.raises(TypeError, match=r"numpy\(\)"):
        pickle.dumps(array)
    opened = mount.open(file)
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(opened)
    mount.close()
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(mount)


def test_a_file_that_is_gone_is_told_when_it_is_opened(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file) as opened:
        sent = pickle.dumps(opened)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(sent)


# ---- io


def test_a_reader_is_a_file_of_python(mount: gpufs.Mount, file: Path) -> None:
    with (
        mount.open(file) as opened,
        opened.reader() as reader,
        file.open("rb", buffering=0) as expected,
    ):
        assert isinstance(reader, io.RawIOBase)
        assert (reader.readable(), reader.seekable(), reader.writable()) == (True, True, False)
        assert reader.name == str(file)
        rng = np.random.default_rng(5)
        for _ in range(200):
            whence = int(rng.integers(0, 3))
            offset = int(rng.integers(0, 120_000))
            at = {0: offset, 1: offset - expected.tell(), 2: offset - 110_000}[whence]
            if whence == 2 and at < -100_000:
                at = -100_000
            assert reader.seek(at, whence) == expected.seek(at, whence)
            count = int(rng.integers(-1, 5000))
            assert reader.read(count) == expected.read(count)
            assert reader.tell() == expected.tell()
        with pytest.raises(ValueError, match="negative"):
            reader.seek(-1)
        with pytest.raises(ValueError, match="whence"):
            reader.seek(0, 3)
        with pytest.raises(io.UnsupportedOperation):
            reader.fileno()
    assert reader.closed


def test_libraries_read_it(mount: gpufs.Mount, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a", CONTENT)
    np.savez(tmp_path / "arrays.npz", x=np.arange(10))
    (tmp_path / "text").write_text("one\ntwo\nthree")
    with mount.open(tmp_path / "zip") as opened, zipfile.ZipFile(opened.reader()) as found:
        assert found.read("a") == CONTENT
    with mount.open(tmp_path / "arrays.npz") as opened, np.load(opened.reader()) as arrays:
        assert same(arrays["x"], np.arange(10))
    with mount.open(tmp_path / "text") as opened:
        assert list(io.TextIOWrapper(io.BufferedReader(opened.reader()))) == [
            "one\n",
            "two\n",
            "three",
        ]
    with mount.open(tmp_path / "zip") as opened, (tmp_path / "copy").open("wb") as copy:
        shutil.copyfileobj(opened.reader(), copy)
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "zip").read_bytes()


def test_a_reader_does_not_close_its_file(mount: gpufs.Mount, file: Path) -> None:
    with mount.open(file) as opened:
        with opened.reader() as reader:
            assert reader.read(3) == CONTENT[:3]
        with pytest.raises(ValueError, match="closed"):
            reader.read(3)
        assert opened.read(3).tobytes() == CONTENT[:3]
        other = opened.reader()
    with pytest.raises(ValueError, match="closed"):
        other.read(3)
    with mount.open(file, "ab") as written, pytest.raises(OSError, match="not open for reading"):
        written.reader()


def test_big_endian_arrays_are_refused_with_what_to_do(mount: gpufs.Mount, tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", np.arange(3, dtype=">f4"))
    with pytest.raises(ValueError, match=r"big\.npy: .*big-endian.*'>f4'.*astype\('<f4'\)"):
        mount.array(tmp_path / "big.npy")
    np.save(tmp_path / "big.npy", np.load(tmp_path / "big.npy").astype("<f4"))
    with mount.array(tmp_path / "big.npy") as array:
        assert same(array[...], np.arange(3, dtype="<f4"))
