"""Declares the calls of python/src/device_calls.cu to Numba."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from gpufs._mount import AnyPath

try:
    import numpy
    from llvmlite import ir
    from numba import cuda
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic
except ImportError as error:
    raise ImportError(
        "gpufs.numba needs the package numba-cuda (pip install gpufs[numba])"
    ) from error

# Machine code that is linked as it is. Rejected: LTO-IR, which is compiled anew for each kernel,
# for as long as nvcc takes for one: 15 s of a processor for three calls of one group, and 10 ms to
# link what is compiled.
_CODE: Final = Path(__file__).resolve().parent / "device_calls.fatbin"
if not _CODE.is_file():
    raise ImportError(
        "this gpufs was built without CUDA (GPUFS_CUDA=ON): gpufs.numba has no device code to link"
    )

Memory: TypeAlias = object
"""What kernels pass for memory: a contiguous array, or an address."""


@intrinsic  # type: ignore[untyped-decorator]
def address_of(typing_context: object, memory: Any) -> object:  # noqa: ANN401
    """Returns where an array begins (in kernels): ``address_of(array)``, a 64-bit number. Of a number: itself."""
    if isinstance(memory, types.Integer):
        # noqa: ANN401
        def of_number(context: Any, builder: Any, signature: Any, arguments: Any) -> object:
            return context.cast(builder, arguments[0], memory, types.uint64)

        return types.uint64(memory), of_number
    if isinstance(memory, types.Array) and memory.layout in "CF":
        # noqa: ANN401
        def of_array(context: Any, builder: Any, signature: Any, arguments: Any) -> object:
            array = context.make_array(memory)(context, builder, arguments[0])
            return builder.ptrtoint(array.data, context.get_value_type(types.uint64))

        return types.uint64(memory), of_array
    return None


def device_path(path: AnyPath) -> object:
    """Returns a path as device calls take it: its bytes and a zero, in GPU memory.

    Raises:
        ValueError: there is a zero in it.
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
            # noqa: ANN401
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> object:
                kinds = [context.get_value_type(parameter) for parameter in parameters]
                function = cgutils.get_or_insert_function(
                    builder.module,
                    ir.FunctionType(context.get_value_type(result), kinds),
                    f"gpufs_{group}_{name}",
                )
                # There are barriers in it. Not knowing that, the compiler may move the call into
                # branches, which the members of a group then take apart from each other. (Which is
                # why this is no cuda.declare_device.)
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
        """Opens a file (a path that ends with a zero; flags of :mod:`os`). Returns a descriptor, or ``-errno``."""
        # type: ignore[no-any-return]
        return native_gopen((address_of(fs), address_of(path), flags, mode))

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gclose(fs: Memory, fd: int) -> int:
        """Closes a descriptor once. Returns 0, or ``-errno``: of the last close, what writing back gave."""
        return native_gclose((address_of(fs), fd))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gread(fs: Memory, fd: int, to: Memory, count: int, offset: int) -> int:
        """Reads ``count`` bytes into memory of the group. Returns the bytes read, 0 at the end, or ``-errno``."""
        # type: ignore[no-any-return]
        return native_gread((address_of(fs), fd, address_of(to), count, offset))

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gwrite(fs: Memory, fd: int, data: Memory, count: int, offset: int) -> int:
        """Writes ``count`` bytes of memory. Returns the bytes written, or ``-errno``."""
        # type: ignore[no-any-return]
        return native_gwrite((address_of(fs), fd, address_of(data), count, offset))

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gfsize(fs: Memory, fd: int) -> int:
        """Returns the size of an open file in bytes, or ``-errno``."""
        return native_gfsize((address_of(fs), fd))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gfsync(fs: Memory, fd: int) -> int:
        """Has all that was written to the file reach its disk. Returns 0, or ``-errno``."""
        return native_gfsync((address_of(fs), fd))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gftruncate(fs: Memory, fd: int, size: int) -> int:
        """Makes the file ``size`` bytes long. Returns 0, or ``-errno``."""
        return native_gftruncate((address_of(fs), fd, size))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gfadvise(fs: Memory, fd: int, offset: int, count: int, advice: int) -> int:
        """Says what will be done with a part of a file (``os.POSIX_FADV_WILLNEED``). Returns 0, or ``-errno``."""
        # type: ignore[no-any-return]
        return native_gfadvise((address_of(fs), fd, offset, count, advice))

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def gunlink(fs: Memory, path: Memory) -> int:
        """Removes a path. Returns 0, or ``-errno``."""
        return native_gunlink((address_of(fs), address_of(path)))  # type: ignore[no-any-return]

    @cuda.jit(device=True, forceinline=True)  # type: ignore[untyped-decorator]
    def grename(fs: Memory, path: Memory, new_path: Memory) -> int:
        """Gives a path another name. Returns 0, or ``-errno``."""
        # type: ignore[no-any-return]
        return native_grename((address_of(fs), address_of(path), address_of(new_path)))

    return Calls(
        gopen, gclose, gread, gwrite, gfsize, gfsync, gftruncate, gfadvise, gunlink, grename
    )
