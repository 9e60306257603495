#!/usr/bin/env bash
# libFuzzer on what a kernel may put into the channel, until the time is over: tools/fuzz.sh SECONDS [ARGUMENT OF LIBFUZZER...].
# Inputs that led somewhere new are kept in build/fuzz/corpus, and where the next run begins. An input that failed is kept in
# build/fuzz/found; build/fuzz/tests/gpufs_slot_fuzz FILE runs it again.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
if ! command -v clang++ >/dev/null; then
  echo "make fuzz needs clang++, with which libFuzzer comes: please install it (Debian: apt-get install clang)" >&2
  exit 1
fi
seconds=${1:-60}
shift || true
tools/setup.sh build
cmake --preset fuzz
cmake --build build/fuzz --parallel "${JOBS:-$(nproc)}" --target gpufs_slot_fuzz
mkdir -p build/fuzz/corpus build/fuzz/found
exec build/fuzz/tests/gpufs_slot_fuzz -max_total_time="$seconds" -max_len=2048 -timeout=60 -print_final_stats=1 \
  -artifact_prefix=build/fuzz/found/ "$@" build/fuzz/corpus
