"""``python -m gpufs`` is the command line."""

import sys

from gpufs.cli import main

if __name__ == "__main__":
    sys.exit(main())
