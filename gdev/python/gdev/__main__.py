"""The entry point of the command line: ``python -m gdev`` and the program ``gdev``."""

from __future__ import annotations

import sys

from gdev.cli import main

if __name__ == "__main__":
    sys.exit(main())
