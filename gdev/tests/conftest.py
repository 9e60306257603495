"""What gdev's tests share: a GPU for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from .simulated_gpu import Gpu


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    """A simulated GPU of 64 MiB."""
    return Gpu(tmp_path / "gpu", 64 << 20)
