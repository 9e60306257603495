"""Device memory that processes share by keys: the calls of ``gdev/include/gdev/shared_memory.h``.

Works in programs that run under gdev (``gdev run``), whose library has the calls.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

_CREATE: Final = 0o1000  # IPC_CREAT
_EXCLUSIVE: Final = 0o2000  # IPC_EXCL
_REMOVE, _STATUS = 0, 2  # IPC_RMID, IPC_STAT
_CUDA: Final = 2  # kDLCUDA
_UNSIGNED: Final = 1  # kDLUInt


class _Status(ctypes.Structure):
    """gshm_ds."""

    _fields_ = (
        ("key", ctypes.c_int64),
        ("bytes", ctypes.c_uint64),
        ("attachments", ctypes.c_uint64),
        ("others", ctypes.c_uint32 * 7),
        ("vgpu", ctypes.c_char * 32),
    )


class _Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack, without a version, and what it points to."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("length", ctypes.c_int64),  # shape points here: past the end of DLManagedTensor
    )


# What was exported and is in use, by the address of its tensor: it keeps its memory attached.
_exports: Final[dict[int, tuple[_Tensor, SharedMemory]]] = {}
# Reentrant: the garbage collector may end an array at any time.
_exports_lock: Final = threading.RLock()


def _drop(address: int) -> None:
    """Called by the library that used a tensor."""
    with _exports_lock:
        dropped = _exports.pop(address, None)
    del dropped


# Prototypes of our own: others may change those of ctypes.pythonapi.
_new_capsule: Final = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_has_name: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _end_capsule(capsule: int) -> None:
    """Called with each capsule that ends; one that was used has another name."""
    if _has_name(capsule, _NAME):
        _drop(_pointer_of(capsule, _NAME))


_NAME: Final = ctypes.c_char_p(b"dltensor")  # capsules point to it
_DELETER: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_drop)
_CALLBACK: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_end_capsule)
_CAPSULE_END: Final = ctypes.cast(_CALLBACK, ctypes.c_void_p)
# Libraries may use them while Python ends.
for _kept in (_NAME, _DELETER, _CALLBACK):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


class SharedMemory:
    """A segment of device memory that is attached in this process.

    An array of bytes to other libraries: ``torch.from_dlpack(memory)``,
    ``cupy.from_dlpack(memory)``, and what takes ``__cuda_array_interface__``. No copy is made.
    Arrays that were made by DLPack keep it attached; it cannot be closed before they are gone.
    """

    def __init__(self, key: str | int, number: int, nbytes: int) -> None:
        """Attaches segment ``number``. ``shm`` calls this."""
        address = ctypes.c_uint64()
        _check(_call("gshmat")(number, ctypes.byref(address), 0), str(key))
        device = ctypes.c_int()
        _check_driver(_call("cuCtxGetDevice")(ctypes.byref(device)), str(key))
        self.key: Final = key
        self.id: Final = number
        self.nbytes: Final = nbytes
        self._device = device.value
        self._address = address.value
        self._detach = weakref.finalize(self, _call("gshmdt"), address)
        self._detach.atexit = False  # the end of the process detaches

    @property
    def pointer(self) -> int:
        """The address, for kernels. Raises ValueError: it is closed."""
        if not self._detach.alive:
            raise ValueError(f"shared memory {self.key!r} is closed")
        return self._address

    def close(self) -> None:
        """Detaches it, after the work of its context. Others keep it. May be called again.

        Raises BufferError: arrays that were made by DLPack still use it.
        """
        with _exports_lock:
            if any(memory is self for _, memory in _exports.values()):
                raise BufferError(f"arrays still use shared memory {self.key!r}")
        self._detach()

    def remove(self) -> None:
        """Removes the segment: its key is free, and its memory when the last one has closed it.

        Raises OSError: EPERM, it is another user's; EIDRM, it has been removed.
        """
        _check(_call("gshmctl")(self.id, _REMOVE, None), str(self.key))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._detach.alive else ", closed"
        return f"<gdev.SharedMemory {self.key!r}, {self.nbytes} bytes{state}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Bytes in one dimension. Keeps nothing attached: the array must not outlive this."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, self._device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Returns a capsule without a version; any consumer takes that.

        There is no work of ours that ``stream`` had to wait for. Raises BufferError: a copy, or
        another device.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("shared memory is used where it is")
        tensor = _Tensor(
            data=self.pointer,
            device_type=_CUDA,
            device_id=self._device,
            dimensions=1,
            type_code=_UNSIGNED,
            type_bits=8,
            type_lanes=1,
            deleter=ctypes.cast(_DELETER, ctypes.c_void_p),
            length=self.nbytes,
        )
        address = ctypes.addressof(tensor)
        tensor.shape = address + _Tensor.length.offset
        with _exports_lock:
            _exports[address] = (tensor, self)
        capsule: object = _new_capsule(address, _NAME, _CAPSULE_END)
        return capsule


def shm(
    key: str | int, nbytes: int, *, create: bool = True, exclusive: bool = False, mode: int = 0o600
) -> SharedMemory:
    """Returns the device memory of a key, attached; makes it if there is none and ``create``.

    key: any text; programs that use the same text share memory; or the number that programs in C
    use, for which ``key_of(text)`` is that of a text. nbytes: at most the segment's size; 0, of one
    that is there: all of it. exclusive: it must be new. mode: who may use it, as of a file; it is
    charged to the virtual GPU of the program that makes it, until it is removed.

    Uses the current CUDA context; without one, the primary context of the first device, which it
    makes current. Raises OSError, with ``filename`` the key: ENOENT, EEXIST, EACCES; EINVAL: it is
    smaller, or has 0 bytes; ENOMEM: the limit; ENOSYS: the program does not run under gdev.
    """
    if nbytes < 0:
        raise ValueError(f"a size is not negative: {nbytes}")
    value = key if isinstance(key, int) else key_of(key)
    if not 0 < value < 2**63:
        raise ValueError(f"a key is a text, or 1 to 2**63 - 1: {key}")
    about = str(key)
    get = _call("gshmget", about)
    _need_context(about)
    flags = (_CREATE if create else 0) | (_EXCLUSIVE if exclusive else 0) | (mode & 0o777)
    number = _check(get(ctypes.c_int64(value), ctypes.c_size_t(nbytes), flags), about)
    status = _Status()
    if nbytes == 0:
        _check(_call("gshmctl")(number, _STATUS, ctypes.byref(status)), about)
    return SharedMemory(key, number, nbytes or status.bytes)


def key_of(text: str) -> int:
    """Returns the number of a text's key, 1 to 2**63 - 1: the same in all programs and versions."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & (2**63 - 1) or 1


def _call(name: str, about: str | None = None) -> Callable[..., int]:
    """Returns a call of the library that the program runs with. Raises OSError: ENOSYS."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        text = "the program does not run under gdev (gdev run)"
        raise OSError(errno.ENOSYS, text, about) from None
    return found


def _check(result: int, key: str) -> int:
    """Returns what is not an error. Raises OSError."""
    if result >= 0:
        return result
    text = os.strerror(-result)
    if result == -errno.ENOSYS:
        text = "the program does not run in a virtual GPU (gdev run)"
    raise OSError(-result, text, key)


def _check_driver(result: int, key: str) -> None:
    if result != 0:
        raise OSError(errno.ENODEV, f"CUDA's error {result}", key)


def _need_context(key: str) -> None:
    """Makes the primary context of the first device current if the thread has none."""
    context = ctypes.c_void_p()
    _check_driver(_call("cuInit")(0), key)
    _check_driver(_call("cuCtxGetCurrent")(ctypes.byref(context)), key)
    if not context:
        _check_driver(_call("cuDevicePrimaryCtxRetain")(ctypes.byref(context), 0), key)
        _check_driver(_call("cuCtxSetCurrent")(context), key)
