"""The sizes of an array that follow from its shape and the type of its items."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class Shaped:
    """The base of arrays: a subclass has the shape and the type, this class derives sizes."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of items along each dimension."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an item; bfloat16 and fp8 types are those of ``ml_dtypes``."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of items."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        """Returns the number of items along the first dimension."""
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]
