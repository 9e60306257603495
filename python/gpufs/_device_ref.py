"""The handle of a mount that kernels take: the class of :meth:`gpufs.Mount.device_ref`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from gpufs import _core

if TYPE_CHECKING:
    from gpufs._mount import Mount  # the type of a public property


class DeviceRef:
    """A mount's handle for kernels, in memory of the mount's device.

    :meth:`Mount.device_ref` returns it. Kernels take it as ``const gpufs::mount_ref*``. Pass it as
    follows:

    * where integers are 64-bit arguments (CuPy, ``cuda.core``, Numba): ``ref.address``;
    * where only arrays are pointers (PyTorch): ``torch.as_tensor(ref, device="cuda")``, which
      copies nothing. Every library that knows ``__cuda_array_interface__`` sees an array of bytes.

    The handle keeps the mount alive. After the mount is closed, the address is invalid.
    """

    # The handle is a pointer because all four libraries can pass one: cuda.core and PyTorch cannot
    # pass structs as arguments, and Numba has no C++ types.

    __slots__ = ("_address", "_mount")

    def __init__(self, mount: Mount, address: int) -> None:
        self._mount = mount
        self._address = address

    def __repr__(self) -> str:
        """Returns a text with the address and the mount."""
        return f"<gpufs.DeviceRef at {self._address:#x} of {self._mount!r}>"

    def __reduce__(self) -> NoReturn:
        """Raises ``TypeError``: an address has no meaning in another process."""
        raise TypeError(
            "a handle for kernels is one only in its process: pickle the mount, and ask it there"
        )

    @property
    def address(self) -> int:
        """The address: in GPU memory, or in the process's memory for a mount on the CPU device."""
        return self._address

    @property
    def mount(self) -> Mount:
        """The mount of this handle."""
        return self._mount

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The handle's bytes as an array in GPU memory; libraries must not write to it.

        Raises:
            AttributeError: the mount is on the CPU device.
        """
        if self._mount.device != "cuda":
            raise AttributeError(
                "the mount is on the CPU device, and its handle in no GPU's memory"
            )
        return {
            "shape": (_core.device_ref_bytes,),
            "typestr": "|u1",
            # The data is declared writable, because PyTorch does not take read-only arrays.
            "data": (self._address, False),
            "strides": None,
            "version": 3,
        }
