"""The reads and writes of an open file: memory, streams, and the calls of the extension module."""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias, TypeVar, cast

from gpufs import _core
from gpufs._device import (
    Array,
    DeviceArray,
    ForeignArray,
    device_array,
    foreign_array,
    is_on_device,
    name_of,
)
from gpufs._open_file import OpenFile
from gpufs._selection import HostList, Selection
from gpufs._streams import NO_STREAM, ChosenStream, Stream, chosen_stream
from gpufs._submit import Submitted, Work

if TYPE_CHECKING:
    import numpy as np

_Result = TypeVar("_Result")

Keep: TypeAlias = Literal["auto", "always", "never"]
"""Whether the pages that a read loads stay in the cache.

``"auto"`` keeps the pages of pieces from half a page to 1 MiB. A smaller piece is read from host
memory where the GPU can do so, and costs only its own bytes. A larger piece would evict everything
else.
"""

_KEEPS: Final = {"auto": 0, "always": 1, "never": 2}


class Transfers(OpenFile):
    """The base of :class:`gpufs.File` that reads and writes, on a stream or as a submitted call."""

    __slots__ = ("_submitted",)

    _submitted: Submitted  # set before the open

    def _read(
        self, n: SupportsIndex, offset: SupportsIndex, out: object | None, work: Work
    ) -> Array:
        self._check_access(os.O_RDONLY)
        wanted, start = operator.index(n), operator.index(offset)
        left = self._bytes_from(start)
        count = left if wanted < 0 or wanted > left else wanted
        chosen = work.stream
        if out is None and count != 0 and not self._on_cpu and work.outcome is None:
            failures = self._core.failures
            buffer = self._core.read_new(self._memory, count, start, chosen.handle)
            return DeviceArray(buffer, (count,), byte_type(), self, chosen.owner, failures)
        result: Any
        target: ForeignArray | None = None
        if out is None:
            result, address = self._allocate((count,), byte_type(), work)
        else:
            target = self._target(out, chosen)
            if target.nbytes < count:
                raise ValueError(f"out has {target.nbytes} bytes, {count} are needed")
            result, address = out, target.address
        if count != 0:
            self._core.read(address, count, start, chosen.handle, result, work.outcome)
            self._done(work, target)
        return cast("Array", result)

    def _write(self, data: object, offset: SupportsIndex, work: Work) -> int:
        self._check_access(os.O_WRONLY)
        start = operator.index(offset)
        if start < 0:
            raise ValueError(f"negative offset: {start}")
        chosen = work.stream
        appends = self._access & os.O_APPEND != 0
        on_device = foreign_array(data)
        if on_device is not None:
            source = self._checked(on_device, chosen)
            self._check_end(start + source.nbytes)
            self._core.write(
                source.address, source.nbytes, start, appends, chosen.handle, data, work.outcome
            )
            self._done(work, source)
            return source.nbytes
        host = _host_bytes(data)
        self._check_end(start + host.nbytes)
        if host.nbytes != 0:
            if self._on_cpu:
                self._core.write(
                    host.ctypes.data, host.nbytes, start, appends, 0, host, work.outcome
                )
            else:
                buffer = self._memory.upload(host.ctypes.data, host.nbytes, chosen.handle, host)
                self._core.write(
                    buffer.address, host.nbytes, start, appends, chosen.handle, buffer, work.outcome
                )
            self._done(work)
        return int(host.nbytes)

    def _read_selection(
        self,
        selection: Selection,
        base: int,
        dtype: np.dtype[Any],
        out: object | None,
        keep: Keep,
        work: Work,
    ) -> Array:
        import numpy as np

        self._check_access(os.O_RDONLY)
        if keep not in _KEEPS:
            raise ValueError(f"keep must be 'auto', 'always' or 'never', not {keep!r}")
        chosen = work.stream
        nbytes = math.prod(selection.shape) * dtype.itemsize
        result: Any
        target: ForeignArray | None = None
        if out is None:
            result, address = self._allocate(selection.shape, dtype, work)
        else:
            target = self._target(out, chosen)
            if not target.has_bytes and target.dtype != name_of(dtype):
                raise TypeError(
                    f"out has items of type {target.dtype}, the result of type {name_of(dtype)}"
                )
            if target.nbytes != nbytes:
                raise ValueError(f"out has {target.nbytes} bytes, the result {nbytes}")
            if len(target.shape) > 1 and target.shape != selection.shape:
                raise ValueError(f"out has shape {target.shape}, the result {selection.shape}")
            result, address = out, target.address
        if nbytes == 0:
            return cast("Array", result)
        kept: object = None
        index: ForeignArray | None = None
        items, count, item_bytes, is_signed, length, step = 0, 0, 8, True, 0, 1
        if isinstance(selection.list, HostList):
            offsets = np.ascontiguousarray(selection.list.offsets, np.int64)
            count = offsets.size
            if self._on_cpu:
                kept, items = offsets, offsets.ctypes.data
            else:
                buffer = self._memory.upload(
                    offsets.ctypes.data, offsets.nbytes, chosen.handle, offsets
                )
                kept, items = buffer, buffer.address
        elif selection.list is not None:
            index = self._checked(selection.list.items, chosen)
            if index.kind not in "iu":
                raise IndexError("an index on the device must be of integers")
            if index.address % index.itemsize != 0:
                raise ValueError("an index on the device must be aligned to its items")
            items, count, item_bytes, is_signed = (
                index.address,
                math.prod(index.shape),
                index.itemsize,
                index.kind == "i",
            )
            length, step = selection.list.length, selection.list.stride
        self._core.read_selection(
            address,
            base + selection.offset,
            selection.before,
            selection.behind,
            selection.run_bytes,
            items,
            count,
            item_bytes,
            is_signed,
            length,
            step,
            _KEEPS[keep],
            chosen.handle,
            (result, kept),
            work.outcome,
        )
        self._done(work, target, index)
        return cast("Array", result)

    def _work(self, stream: Stream) -> Work:
        chosen = self._stream(stream)
        # The file's calls share one place for errors. On the CPU device each call raises its own.
        outcome = _core.Outcome(self._memory) if self._on_cpu else None
        return Work(chosen, chosen, outcome)

    def _submit(
        self,
        access: int,
        stream: Stream,
        arrays: tuple[object, ...],
        call: Callable[[Work], _Result],
        *,
        uses_device: bool = False,
    ) -> Future[_Result]:
        """Submits ``call`` to a background thread; returns its future.

        If the call uses arrays on the device, it begins after the present work of ``stream``.
        """
        self._check_access(access)
        home, memory = self._stream(stream), self._memory
        place: _core.Place | None = None
        if not self._on_cpu and (uses_device or any(map(is_on_device, arrays))):
            place = memory.place_in(home.handle)

        def run() -> _Result:
            outcome = _core.Outcome(memory)
            chosen = home if self._on_cpu else ChosenStream(memory.background_stream(), memory)
            if place is not None:
                place.hold_back(chosen.handle)
            result = call(Work(chosen, home, outcome))
            outcome.wait()
            return result

        future = self._mount.submitter.submit(run)
        self._submitted.add(future, writes=access == os.O_WRONLY)
        return future

    def _allocate(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], work: Work
    ) -> tuple[Any, int]:
        """Returns a new array on the device, and its address."""
        if self._on_cpu:
            import numpy as np

            array = np.empty(shape, dtype)
            return array, array.ctypes.data
        nbytes = math.prod(shape) * dtype.itemsize
        buffer = self._memory.allocate(nbytes, work.stream.handle, work.home.handle)
        failures = self._core.failures if work.outcome is None else None
        return DeviceArray(buffer, shape, dtype, self, work.home.owner, failures), buffer.address

    def _stream(self, stream: Stream) -> ChosenStream:
        return NO_STREAM if self._on_cpu else chosen_stream(stream, self.ordinal)

    def _done(self, work: Work, *used: ForeignArray | None) -> None:
        """Orders later work of the arrays' own streams after this launch, which uses the arrays."""
        if work.outcome is not None:
            return  # the work is done, or the submitter waits for it
        for array in used:
            if (
                array is not None
                and array.stream is not None
                and array.stream != work.stream.handle
            ):
                self._memory.hold_back(array.stream, work.stream.handle)

    def _checked(self, source: ForeignArray, chosen: ChosenStream) -> ForeignArray:
        """Orders ``chosen`` after the array's own stream.

        Returns the array that its kernels can use.
        """
        if self._on_cpu:
            raise TypeError("an array in GPU memory, but the mount is on the CPU")
        if not source.is_contiguous:
            raise ValueError("an array on the device must be C-contiguous")
        memory = self._memory
        if source.nbytes != 0:
            memory.check_address(source.address)
        if source.stream is not None and source.stream != chosen.handle:
            memory.hold_back(chosen.handle, source.stream)
        return source

    def _target(self, out: object, chosen: ChosenStream) -> ForeignArray:
        if not self._on_cpu:
            target = self._checked(device_array(out), chosen)
        else:
            import numpy as np

            if not isinstance(out, np.ndarray):
                raise TypeError(
                    f"out must be a NumPy array on the CPU device, not {type(out).__name__}"
                )
            if out.dtype.hasobject:
                raise TypeError("out must not be of Python objects")
            if not out.flags.c_contiguous:
                raise ValueError("out must be C-contiguous")
            target = ForeignArray(
                out.ctypes.data,
                out.shape,
                True,
                out.itemsize,
                name_of(out.dtype),
                None,
                not out.flags.writeable,
            )
        if target.read_only:
            raise ValueError("out cannot be written")
        return target


@functools.cache
def byte_type() -> np.dtype[Any]:
    """Returns the type of an item of bytes."""
    import numpy as np

    return np.dtype(np.uint8)


def _host_bytes(data: object) -> np.ndarray[Any, Any]:
    """Returns the bytes of an object in host memory, as a C-contiguous array."""
    import numpy as np

    if hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        array = np.ascontiguousarray(data)
        if array.dtype.hasobject:
            raise TypeError("an array of Python objects has no bytes to be written")
        return array
    return np.frombuffer(cast(Any, data), np.uint8)
