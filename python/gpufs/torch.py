"""Arrays in files, for PyTorch: indexing returns tensors on the GPU.

    >>> import gpufs, gpufs.torch, torch  # doctest: +SKIP
    >>> with gpufs.mount(cache="8GiB") as fs:
    ...     table = gpufs.torch.FileTensor(fs.array("embeddings.npy"))
    ...     rows = table[torch.randint(len(table), (1024,), device="cuda")]
    ...     same = torch.nn.functional.embedding(ids, table)

With a mount on the CPU device, the tensors are on the CPU. This module needs PyTorch; the rest of
gpufs does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from gpufs._array import FileArray
from gpufs._selection import Selection
from gpufs._transfers import Keep

_DTYPES: Final = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


class FileTensor(torch.utils.data.Dataset[torch.Tensor]):
    """A tensor in a file. Its items are read when it is indexed.

    Reads are ordered by the current CUDA stream (``torch.cuda.stream``), and later work there can
    use the results at once. Errors come as described for :class:`gpufs.File`. Gradients are not
    computed.

    It is a map-style ``Dataset``. One read for each batch, without a copy: ``DataLoader(table,
    batch_size=None, sampler=BatchSampler(RandomSampler(table), 512, False))``. With
    ``batch_size=512`` alone there is also one read for each batch, followed by a copy when PyTorch
    stacks the items. Use ``num_workers=0`` in both cases: a mount cannot be used after a fork.

    ``torch.index_select`` and ``torch.nn.functional.embedding`` accept it instead of a tensor.
    """

    def __init__(self, array: FileArray, *, keep: Keep = "auto") -> None:
        """Wraps an array of :meth:`gpufs.Mount.array`.

        ``keep`` is that of :meth:`gpufs.FileArray.read`.
        """
        self._array = array
        self._keep: Keep = keep
        self._dtype = _DTYPES[array.dtype.name]

    @property
    def array(self) -> FileArray:
        """The array in the file."""
        return self._array

    @property
    def dtype(self) -> torch.dtype:
        """The type of an item."""
        return self._dtype

    @property
    def shape(self) -> torch.Size:
        """The number of items along each dimension."""
        return torch.Size(self._array.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def device(self) -> torch.device:
        """The device of the tensors that indexing returns."""
        mount = self._array.file.mount
        return torch.device("cpu") if mount.device == "cpu" else torch.device("cuda", mount.ordinal)

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Returns the shape, or the length of dimension ``dim``."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        """Returns the number of items along the first dimension."""
        return len(self._array)

    def __repr__(self) -> str:
        """Returns a text with the shape, the type and the file."""
        return (
            f"<gpufs.torch.FileTensor {tuple(self.shape)} of {self._dtype} in "
            f"{self._array.file.name!r}>"
        )

    def __getitem__(self, key: object) -> torch.Tensor:
        """Reads the items that ``key`` selects.

        ``key`` consists of integers, slices, ``...``, ``None``, tensors, arrays and lists.
        """
        return self._read(self._array.selection(_on_its_side(key)))

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Reads items of the first dimension with one read; ``DataLoader`` calls it for a batch."""
        return list(self[list(indices)].unbind(0))

    def index_select(self, dim: int, index: torch.Tensor) -> torch.Tensor:
        """Reads as ``torch.index_select``, but negative numbers count from the end."""
        if index.ndim > 1:
            raise IndexError("index_select(): the index must be a vector or a scalar")
        return self._read(self._array.taking(_on_its_side(index.reshape(-1)), dim))

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Implements PyTorch's functions that accept a tensor in a file."""
        if function is torch.index_select:
            return _index_select(*args, **(kwargs or {}))
        if function is torch.nn.functional.embedding:
            return _embedding(*args, **(kwargs or {}))
        return NotImplemented

    def _read(self, selection: Selection) -> torch.Tensor:
        # The memory is PyTorch's, which then tracks its use by streams (record_stream). The items
        # are read as bytes, because not every version of NumPy and of the array interface has every
        # type.
        tensor = torch.empty(selection.shape, dtype=self._dtype, device=self.device)
        flat = tensor.reshape(-1).view(torch.uint8)
        self._array.read_selection(
            selection, out=flat if flat.is_cuda else flat.numpy(), keep=self._keep
        )
        return tensor


def _on_its_side(key: object) -> object:
    """Converts tensors on the host to NumPy's arrays; leaves tensors on the device as they are."""
    if isinstance(key, tuple):
        return tuple(_on_its_side(part) for part in key)
    if isinstance(key, torch.Tensor):
        if key.dtype == torch.bool or not key.is_cuda:
            return key.detach().cpu().numpy()
        return key.detach().contiguous()
    return key


def _index_select(input: FileTensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return input.index_select(dim, index)


def _embedding(
    input: torch.Tensor,
    weight: FileTensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    # The other arguments concern gradients, which are not computed.
    if max_norm is not None:
        raise NotImplementedError("max_norm would change the table, which is in a file")
    if weight.ndim != 2:
        raise ValueError("the table of an embedding has two dimensions")
    if not input.is_cuda and input.numel() != 0 and int(input.min()) < 0:
        raise IndexError("index out of range in embedding")
    return weight[input]
