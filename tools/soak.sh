#!/usr/bin/env bash
# Random operations against the naive models with new seeds, until the time is over: tools/soak.sh MINUTES [FIRST_SEED].
# Stops at the first failure, whose seed the test prints; GPUFS_TEST_SEED=<seed> runs that one again.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-10}
seed=${2:-$(date +%s)}
program=build/release/tests/gpufs_tests
end=$(($(date +%s) + minutes * 60))
at_once=20
while [ "$(date +%s)" -lt "$end" ]; do
  printf 'seeds %s to %s\n' "$seed" $((seed + at_once - 1))
  GPUFS_TEST_SEED=$seed GPUFS_TEST_SEED_COUNT=$at_once timeout 600 "$program" --gtest_brief=1 --gtest_filter='seed/*'
  seed=$((seed + at_once))
done
