"""Declares the calls of python/src/device_calls.cu to Numba."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from gpufs._options import AnyPath

try:
    import numpy
    from llvmlite import ir
    from numba import cuda
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic
except ImportError as error:
    raise ImportError(
        "gpufs.numba needs the package numba-cuda (pip install '.[numba]' in gpufs's source tree)"
    ) from error

# Machine code, linked without a further compilation. docs/decisions/python.md says why it is not
# LTO-IR.
_CODE: Final = Path(__file__).resolve().parent / "device_calls.fatbin"
if not _CODE.is_file():
    raise ImportError(
        "this gpufs was built without CUDA (GPUFS_CUDA=ON): gpufs.numba has no device code to link"
    )

Memory: TypeAlias = object
"""An argument for memory in kernels: a contiguous array, or an address."""


@intrinsic  # type: ignore[untyped-decorator]
def address_of(typing_context: object, memory: Any) -> object:  # noqa: ANN401
    """Returns the address of an array's first item as a 64-bit number, in kernels.

    An integer argument is returned unchanged.
    """
    if isinstance(memory, types.Integer):

        def of_number(
            context: Any,  # noqa: ANN401
            builder: Any,  # noqa: ANN401
            signature: Any,  # noqa: ANN401
            arguments: Any,  # noqa: ANN401
        ) -> object:
            return context.cast(builder, arguments[0], memory, types.uint64)

        return types.uint64(memory), of_number
    if isinstance(memory, types.Array) and memory.layout in "CF":

        def of_array(
            context: Any,  # noqa: ANN401
            builder: Any,  # noqa: ANN401
            signature: Any,  # noqa: ANN401
            arguments: Any,  # noqa: ANN401
        ) -> object:
            array = context.make_array(memory)(context, builder, arguments[0])
            return builder.ptrtoint(array.data, context.get_value_type(types.uint64))

        return types.uint64(memory), of_array
    return None


def device_path(path: AnyPath) -> object:
    """Returns a path for device calls: its bytes and a terminating zero, in GPU memory.

    Raises:
        ValueError: the path contains a zero byte.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"a path with a zero byte in it: {path!r}")
    return cuda.to_device(numpy.frombuffer(name + b"\0", numpy.uint8))


class Calls(NamedTuple):
    """The device functions of one kind of group."""

    gopen: Any
    gclose: Any
    gread: Any
    gwrite: Any
    gfsize: Any
    gfsync: Any
    gftruncate: Any
    gfadvise: Any
    gunlink: Any
    grename: Any


def calls_of(group: str) -> Calls:
    """Declares the calls of one kind of group (``thread``, ``warp`` or ``block``)."""

    def native(name: str, result: Any, *parameters: Any) -> Any:  # noqa: ANN401
        """Declares one function, which takes a tuple of arguments."""

        @intrinsic  # type: ignore[untyped-decorator]
        def call(typing_context: object, arguments: Any) -> object:  # noqa: ANN401
            def generate(
                context: Any,  # noqa: ANN401
                builder: Any,  # noqa: ANN401
                signature: Any,  # noqa: ANN401
                values: Any,  # noqa: ANN401
            ) -> object:
                kinds = [context.get_value_type(parameter) for parameter in parameters]
                function = cgutils.get_or_insert_function(
                    builder.module,
                    ir.FunctionType(context.get_value_type(result), kinds),
                    f"gpufs_{group}_{name}",
                )
                # The function contains barriers. Without this attribute the compiler may move the
                # call into branches, and the members of a group would then call separately.
                # cuda.declare_device cannot set the attribute.
                function.attributes.add("convergent")
                context.active_code_library.add_linking_file(str(_CODE))
                given = zip(
                    cgutils.unpack_tuple(builder, values[0]), arguments, parameters, strict=True
                )
                return builder.call(
                    function, [context.cast(builder, *argument) for argument in given]
                )

            return result(arguments), generate

        return call

    address, fd_type, size, position = types.uint64, types.int32, types.uint64, types.int64
    native_gopen = native("gopen", types.int32, address, address, types.int32, types.uint32)
    native_gclose = native("gclose", types.int32, address, fd_type)
    native_gread = native("gread", types.int64, address, fd_type, address, size, position)
    native_gwrite = native("gwrite", types.int64, address, fd_type, address, size, position)
    native_gfsize = native("gfsize", types.int64, address, fd_type)
    native_gfsync = native("gfsync", types.int32, address, fd_type)
    native_gftruncate = native("gftruncate", types.int32, address, fd_type, position)
    native_gfadvise = native("gfadvise", types.int32, address, fd_type, position, size, types.int32)
    native_gunlink = native("gunlink", types.int32, address, address)
    native_grename = native("grename", types.int32, address, address, address)

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gopen(fs: Memory, path: Memory, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Opens a file. Returns a descriptor, or ``-errno``.

        ``path`` ends with a zero byte; ``flags`` are those of :mod:`os`.
        """
        return native_gopen(  # type: ignore[no-any-return]
            (address_of(fs), address_of(path), flags, mode)
        )

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gclose(fs: Memory, fd: int) -> int:
        """Closes a descriptor once. Returns 0, or ``-errno``.

        The last close also returns errors of the write-back.
        """
        return native_gclose((address_of(fs), fd))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gread(fs: Memory, fd: int, to: Memory, count: int, offset: int) -> int:
        """Reads ``count`` bytes into the group's memory.

        Returns the bytes read, 0 at the end of the file, or ``-errno``.
        """
        return native_gread(  # type: ignore[no-any-return]
            (address_of(fs), fd, address_of(to), count, offset)
        )

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gwrite(fs: Memory, fd: int, data: Memory, count: int, offset: int) -> int:
        """Writes ``count`` bytes of memory. Returns the bytes written, or ``-errno``."""
        return native_gwrite(  # type: ignore[no-any-return]
            (address_of(fs), fd, address_of(data), count, offset)
        )

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gfsize(fs: Memory, fd: int) -> int:
        """Returns the size of an open file in bytes, or ``-errno``."""
        return native_gfsize((address_of(fs), fd))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gfsync(fs: Memory, fd: int) -> int:
        """Waits until all written bytes are on the disk. Returns 0, or ``-errno``."""
        return native_gfsync((address_of(fs), fd))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gftruncate(fs: Memory, fd: int, size: int) -> int:
        """Sets the file's length to ``size`` bytes. Returns 0, or ``-errno``."""
        return native_gftruncate((address_of(fs), fd, size))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gfadvise(fs: Memory, fd: int, offset: int, count: int, advice: int) -> int:
        """Announces the use of a part of a file. Returns 0, or ``-errno``.

        ``advice`` is ``os.POSIX_FADV_WILLNEED`` or ``os.POSIX_FADV_DONTNEED``; other values do
        nothing.
        """
        return native_gfadvise(  # type: ignore[no-any-return]
            (address_of(fs), fd, offset, count, advice)
        )

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gunlink(fs: Memory, path: Memory) -> int:
        """Removes a path. Returns 0, or ``-errno``."""
        return native_gunlink((address_of(fs), address_of(path)))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def grename(fs: Memory, path: Memory, new_path: Memory) -> int:
        """Renames a path. Returns 0, or ``-errno``."""
        return native_grename(  # type: ignore[no-any-return]
            (address_of(fs), address_of(path), address_of(new_path))
        )

    return Calls(
        gopen, gclose, gread, gwrite, gfsize, gfsync, gftruncate, gfadvise, gunlink, grename
    )
