"""Exit statuses that several commands share."""

from __future__ import annotations

import signal
from typing import Final

FAILED: Final = 2
NOT_ALL_READ: Final = 1
INTERRUPTED: Final = 128 + signal.SIGINT
