#!/usr/bin/env python3
"""Takes the times of benchmarks from results into python/gpufs/bench/durations.json.

Usage: python3 benchmarks/update_durations.py RESULTS.json...
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpufs.bench import _durations, read

FILE = Path(__file__).resolve().parents[1] / "python" / "gpufs" / "bench" / "durations.json"

durations = _durations.known()
for name in sys.argv[1:]:
    durations = _durations.with_results(durations, read(Path(name)))
FILE.write_text(_durations.to_json(durations), encoding="utf-8")
