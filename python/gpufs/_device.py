"""Arrays in GPU memory, exchanged with other libraries."""

from __future__ import annotations

import errno
import functools
import math
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias, cast

from gpufs import _core
from gpufs._shapes import Shaped
from gpufs._streams import LEGACY_STREAM

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_DLPACK_CUDA: Final = 2
_DLPACK_CUDA_HOST: Final = 3
_DLPACK_CUDA_MANAGED: Final = 13
_DLPACK_CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
# Words for NumPy's kinds.
_WORDS: Final = {
    "i": "int",
    "u": "uint",
    "f": "float",
    "c": "complex",
    "b": "bool",
    "V": "void",
}
_KINDS: Final = {word: kind for kind, word in _WORDS.items() if kind != "V"}
_DLPACK_CODES_BY_NAME: Final = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


class ForeignArray(NamedTuple):
    """An array of another library, in memory that kernels can use."""

    address: int
    shape: tuple[int, ...]
    is_contiguous: bool  # in C order
    itemsize: int  # bytes
    # numpy.dtype.name for NumPy's types and those of ml_dtypes; for other types a text that is no
    # such name.
    dtype: str
    # The cudaStream_t that orders the array's content. None: the array does not name a stream.
    stream: int | None
    read_only: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return math.prod(self.shape) * self.itemsize

    @property
    def kind(self) -> str:
        """As ``numpy.dtype.kind``: b, i, u, f, c; V for types that NumPy itself does not have."""
        return _KINDS.get(self.dtype.rstrip("0123456789"), "V")

    @property
    def has_bytes(self) -> bool:
        """Whether the items are plain bytes, which can hold the items of any type."""
        return self.dtype == "uint8" or self.dtype.startswith("void")


def is_on_device(array: object) -> bool:
    """Returns whether an object is an array in GPU memory."""
    is_cuda = getattr(array, "is_cuda", None)
    if isinstance(is_cuda, bool):  # a torch.Tensor has the interface on every device
        return is_cuda
    name = "__cuda_array_interface__"
    if hasattr(type(array), name) or name in getattr(array, "__dict__", {}):
        return True
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED)


def foreign_array(array: object) -> ForeignArray | None:
    """Returns the description of an array in GPU memory; ``None`` for any other object.

    Raises:
        TypeError: the array is of a kind that kernels would misread.
    """
    if isinstance(array, DeviceArray):
        return array.as_foreign()
    if not is_on_device(array):
        return None
    torch: Any = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # missing while another thread imports PyTorch
    if tensor is not None and isinstance(array, tensor):
        return _of_tensor(array, torch)
    try:
        facts = cast("dict[str, Any] | None", getattr(array, "__cuda_array_interface__", None))
    # PyTorch raises these errors for types that the interface cannot name.
    except (
        KeyError,
        TypeError,
        RuntimeError,
    ):
        facts = None
    if facts is not None:
        return _of_interface(facts)
    address, shape, strides, code, bits, _, _ = _core.dlpack_facts(array)
    itemsize = bits // 8
    is_contiguous = _is_contiguous(shape, tuple(s * itemsize for s in strides), itemsize)
    return ForeignArray(
        address, shape, is_contiguous, itemsize, _name_of_dlpack(code, bits), None, False
    )


def device_array(array: object) -> ForeignArray:
    """Returns the description of an array in GPU memory.

    Raises:
        TypeError: the object is not an array in GPU memory.
    """
    found = foreign_array(array)
    if found is None:
        raise TypeError(f"not an array in GPU memory: {type(array).__name__}")
    return found


def _of_tensor(tensor: Any, torch: Any) -> ForeignArray:  # noqa: ANN401
    """Describes a tensor through its own attributes, which are faster than its interface."""
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            "tensors that are sparse, or yet to be conjugated or negated, are not taken"
        )
    read_only = tensor.requires_grad and torch.is_grad_enabled()
    return ForeignArray(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tensor.is_contiguous(),
        tensor.element_size(),
        str(tensor.dtype).removeprefix("torch."),  # the names of NumPy and of ml_dtypes
        None,
        read_only,
    )


def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the name of a NumPy type, as in :attr:`ForeignArray.dtype`."""
    return dtype.name if dtype.isnative and dtype.names is None else str(dtype)


@functools.cache
def _name_of_dlpack(code: int, bits: int) -> str:
    for name, number in _DLPACK_CODES_BY_NAME.items():
        if code == number:
            return name
    for kind, number in _DLPACK_CODES.items():
        if code == number:
            return _name_of_kind(kind, bits)
    return f"number {code} of DLPack, {bits} bits"


def _name_of_kind(kind: str, bits: int) -> str:
    return "bool" if kind == "b" else f"{_WORDS[kind]}{bits}"


def _name_in_interface(facts: dict[str, Any]) -> str:
    typestr, description = str(facts["typestr"]), facts.get("descr")
    if description is not None and description != [("", typestr)]:
        return str(description)  # a structure
    kind = typestr[1]
    return _name_of_kind(kind, int(typestr[2:]) * 8) if kind in _WORDS else typestr


def _of_interface(facts: dict[str, Any]) -> ForeignArray:
    typestr = str(facts["typestr"])
    shape = tuple(int(n) for n in facts["shape"])
    itemsize = int(typestr[2:])
    strides = facts.get("strides")
    address, read_only = facts["data"]
    stream = facts.get("stream")
    if typestr[0] == ">" or facts.get("mask") is not None:
        raise TypeError("arrays with swapped bytes or a mask are not taken")
    return ForeignArray(
        int(address or 0),
        shape,
        strides is None or _is_contiguous(shape, tuple(strides), itemsize),
        itemsize,
        _name_in_interface(facts),
        0 if stream == LEGACY_STREAM else stream,
        bool(read_only),
    )


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    if 0 in shape:
        return True
    expected = itemsize
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count != 1 and stride != expected:
            return False
        expected *= count
    return True


class _ReadFile(Protocol):
    """The file whose read made an array."""

    @property
    def name(self) -> str: ...

    @property
    def ordinal(self) -> int: ...

    def check(self) -> None: ...

    def failures(self) -> int: ...


class DeviceArray(Shaped):
    """A C-contiguous array in GPU memory: the result of a read.

    Other libraries take it without a copy, through DLPack and ``__cuda_array_interface__``:
    ``torch.from_dlpack(a)``, ``cupy.asarray(a)``, ``numba.cuda.as_cuda_array(a)``. The read is
    ordered by the stream that was passed to it. Both protocols make the consumer's stream wait for
    it.

    The memory is freed in that order, too, after the last reference is gone. If the array was
    passed to another stream, the free waits for the device first.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_dtype",
        "_failures",
        "_file",
        "_ordinal",
        "_shape",
        "_stream",
    )

    def __init__(
        self,
        buffer: _core.DeviceBuffer,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        file: _ReadFile,
        stream: object,
        failures: int | None,
    ) -> None:
        self._buffer = buffer
        self._shape = shape
        self._dtype = dtype
        self._file = file
        self._ordinal = file.ordinal
        self._stream = stream  # kept alive: the memory is freed in the order of this stream
        # The file's failure count before the array's own read. None: that read is known to be good.
        self._failures = failures

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of items along each dimension."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an item; bfloat16 and fp8 types are those of ``ml_dtypes``."""
        return self._dtype

    @property
    def device(self) -> str:
        """The name of the GPU, such as ``"cuda:0"``."""
        return f"cuda:{self._ordinal}"

    @property
    def address(self) -> int:
        """The address of the first item, in GPU memory."""
        return self._buffer.address

    def __repr__(self) -> str:
        """Returns a text with the shape, the type and the GPU."""
        return f"<gpufs.DeviceArray {self._shape} of {self._dtype} on {self.device}>"

    def as_bytes(self) -> DeviceArray:
        """Returns the same memory as a vector of ``uint8``."""
        import numpy as np

        return DeviceArray(
            self._buffer,
            (self.nbytes,),
            np.dtype(np.uint8),
            self._file,
            self._stream,
            self._failures,
        )

    def as_foreign(self) -> ForeignArray:
        """Returns the array's description, as for arrays of other libraries."""
        name = name_of(self._dtype)
        return ForeignArray(
            self.address, self._shape, True, self.itemsize, name, self._buffer.stream, False
        )

    def __reduce__(self) -> NoReturn:
        """Raises ``TypeError``: GPU memory belongs to its process."""
        raise TypeError("an array in GPU memory cannot be pickled, but what its numpy() gives can")

    def note_use_elsewhere(self) -> None:
        """Records that another stream uses the array: the free must wait for the device."""
        self._buffer.note_use_elsewhere()

    def numpy(self) -> npt.NDArray[Any]:
        """Returns a copy in host memory. Waits for the read.

        Raises:
            OSError: the read failed, with ``errno`` and ``filename``. ``EIO``: another call has
                raised the error of a failed read of the file in the meantime, which may have been
                this read.
            IndexError: an index on the device was out of bounds.
        """
        import numpy as np

        array = np.empty(self._shape, self._dtype)
        self._buffer.copy_to_host(array.ctypes.data, array.nbytes, array)
        if self._failures is None:
            return array
        self._file.check()
        if self._file.failures() != self._failures:
            text = "a read of the file has failed since, which may have been that of this array"
            raise OSError(errno.EIO, text, self._file.name)
        return array

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Returns a copy in host memory, for NumPy's functions; see :meth:`numpy`. Waits."""
        if copy is False:
            raise ValueError("an array in GPU memory cannot be had by NumPy without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3."""
        if self._dtype.kind == "V" or self._dtype.name in _DLPACK_CODES_BY_NAME:
            raise AttributeError(f"the CUDA array interface has no {self._dtype}; use DLPack")
        self._buffer.note_use_elsewhere()  # the consumer does not name its stream
        return {
            "version": 3,
            "shape": self._shape,
            "typestr": self._dtype.str,
            "data": (self.address if self.size else 0, False),
            "strides": None,
            "stream": self._buffer.stream or LEGACY_STREAM,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's device: CUDA, and the GPU's number."""
        return _DLPACK_CUDA, self._ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Returns a capsule for a library that supports DLPack. ``stream`` waits for the read.

        Raises:
            BufferError: the caller asks for a copy or for another device.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device}")
        if copy:
            raise BufferError("the array is given without a copy")
        wanted = 0 if stream is None or stream == LEGACY_STREAM else stream
        own = self._buffer.stream
        if stream != -1 and wanted != own:
            self._buffer.hold_back(wanted)
        if wanted != own or stream == -1:
            self._buffer.note_use_elsewhere()
        code = _DLPACK_CODES_BY_NAME.get(self._dtype.name)
        if code is None:
            code = _DLPACK_CODES[self._dtype.kind]
        return self._buffer.dlpack(
            self, list(self._shape), code, self.itemsize * 8, _DLPACK_CUDA, self._ordinal
        )


Array: TypeAlias = "DeviceArray | npt.NDArray[Any]"
"""The result of a read: an array on the GPU, or NumPy's on the CPU device."""


def on_host(array: Array) -> npt.NDArray[Any]:
    """Returns the result of a read in host memory. Waits."""
    return array.numpy() if isinstance(array, DeviceArray) else array
