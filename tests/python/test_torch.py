"""Arrays in files for PyTorch, on the CPU device and on a GPU. PyTorch need not be here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpufs
import ml_dtypes
import numpy as np
import pytest
from gpufs import _core

torch: Any = pytest.importorskip("torch", reason="no PyTorch here")

from gpufs.torch import FileTensor  # noqa: E402 - it needs PyTorch

ROWS, COLUMNS = 3000, 48


@pytest.fixture(params=["cpu", "cuda"])
def fs(request: pytest.FixtureRequest) -> Iterator[gpufs.Mount]:
    if request.param == "cuda" and not _core.examine_cuda()["gpus"]:
        pytest.skip("no GPU here")
    with gpufs.mount(device=request.param, cache="64MiB", open_files=4096) as made:
        yield made


@pytest.fixture
def table(fs: gpufs.Mount, tmp_path: Path) -> Iterator[FileTensor]:
    values = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    np.save(tmp_path / "table.npy", values)
    with fs.array(tmp_path / "table.npy") as array:
        yield FileTensor(array)


def whole(table: FileTensor) -> Any:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32, device=table.device).reshape(
        ROWS, COLUMNS
    )


def indices(table: FileTensor, *, on_device: bool = True, dtype: Any = None, least: int = 0) -> Any:
    made = torch.randint(least, ROWS, (500,), dtype=dtype or torch.int64)
    return made.to(table.device) if on_device else made


def test_it_describes_itself(table: FileTensor) -> None:
    assert (table.shape, table.ndim, len(table), table.dtype) == (
        torch.Size((ROWS, COLUMNS)),
        2,
        ROWS,
        torch.float32,
    )
    assert (table.size(), table.size(1), table[0].device) == (table.shape, COLUMNS, table.device)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
@pytest.mark.parametrize("on_device", [True, False])
def test_indexing_gives_what_a_tensor_gives(table: FileTensor, dtype: Any, on_device: bool) -> None:
    expected = whole(table)
    index = indices(table, on_device=on_device, dtype=dtype, least=-ROWS)
    assert torch.equal(table[index], expected[index.to(table.device).long()])
    assert torch.equal(
        table[index.reshape(20, 25)], expected[index.reshape(20, 25).to(table.device).long()]
    )
    assert torch.equal(table[index, 3:40:2], expected[index.to(table.device).long(), 3:40:2])


def test_other_expressions(table: FileTensor) -> None:
    expected = whole(table)
    mask = expected[:, 0] % 7 == 0
    for key in (
        5,
        -1,
        slice(10, 900, 7),
        (slice(None), 4),
        (..., slice(3, 9)),
        mask,
        (mask, 2),
        [1, 5, 5],
        None,
    ):
        assert torch.equal(table[key], expected[key])


def test_functions_of_pytorch_take_it(table: FileTensor) -> None:
    expected, index = whole(table), indices(table)
    assert torch.equal(torch.index_select(table, 0, index), expected[index])
    assert torch.equal(table.index_select(1, index % COLUMNS), expected[:, index % COLUMNS])
    looked_up = torch.nn.functional.embedding(index.reshape(50, 10), table)
    assert torch.equal(looked_up, expected[index].reshape(50, 10, COLUMNS))
    with pytest.raises(NotImplementedError):
        torch.nn.functional.embedding(index, table, max_norm=1.0)
    with pytest.raises(TypeError):
        torch.add(table, 1)


def test_data_loaders_take_it(table: FileTensor) -> None:
    expected = whole(table)
    stacked = list(torch.utils.data.DataLoader(table, batch_size=128, shuffle=False))
    assert torch.equal(torch.cat(stacked), expected)
    sampler = torch.utils.data.BatchSampler(
        torch.utils.data.SequentialSampler(table), 128, drop_last=False
    )
    whole_batches = list(torch.utils.data.DataLoader(table, batch_size=None, sampler=sampler))
    assert [len(batch) for batch in whole_batches] == [128] * (ROWS // 128) + [ROWS % 128]
    assert torch.equal(torch.cat(whole_batches), expected)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "complex64", "uint16", "int8"]
)
def test_types(fs: gpufs.Mount, tmp_path: Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    values = (
        (np.arange(7 * 96) % 2 if name == "bool" else np.arange(7 * 96) % 50)
        .reshape(-1, 7)
        .astype(dtype)
    )
    values.tofile(tmp_path / "raw")
    with fs.array(tmp_path / "raw", getattr(torch, name), (-1, 7)) as array:
        taken = FileTensor(array)[3:90:4]
        assert taken.dtype == getattr(torch, name)
        assert np.array_equal(
            taken.cpu().contiguous().view(torch.uint8).numpy(),
            np.ascontiguousarray(values[3:90:4]).view(np.uint8),
        )


def test_indices_that_are_copied_first_live_long_enough(table: FileTensor) -> None:
    """Of the size of the result, whose memory could be theirs."""
    expected = whole(table)
    for _ in range(20):
        index = torch.randint(ROWS, (COLUMNS // 2, 512), device=table.device).t()
        assert torch.equal(table[index], expected[index])
        strided = torch.randint(ROWS, (1024,), device=table.device)[::2]
        assert torch.equal(torch.index_select(table, 0, strided), expected[strided])


def test_side_streams(table: FileTensor) -> None:
    if table.device.type != "cuda":
        pytest.skip("streams are a GPU's")
    expected, results = whole(table), []
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for stream in streams:
        with torch.cuda.stream(stream):
            index = indices(table)
            results.append((index, table[index] * 2))
    torch.cuda.synchronize()
    for index, result in results:
        assert torch.equal(result, expected[index] * 2)


def test_an_index_out_of_bounds_is_told(table: FileTensor) -> None:
    with pytest.raises(IndexError):
        _ = table[torch.tensor([ROWS])]
    bad = torch.tensor([0, ROWS], device=table.device)
    with pytest.raises(IndexError):
        _ = table[bad]
        table.array.file.wait()
    assert torch.equal(table[0], whole(table)[0])


def test_a_copy_to_the_host_may_follow_at_once(fs: gpufs.Mount, tmp_path: Path) -> None:
    """Which locks the driver until the kernel has ended: so the kernel must not need it."""
    values = np.random.default_rng(1).integers(0, 255, (64 << 20,), np.uint8)
    values.tofile(tmp_path / "large")
    with fs.array(tmp_path / "large", "uint8") as array:
        assert np.array_equal(FileTensor(array)[1:].cpu().numpy(), values[1:])
