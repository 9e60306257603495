#!/bin/sh
# Exits with 0 if an NVIDIA GPU is visible. Does not use the CUDA runtime, which may be missing.
for device in /dev/nvidia[0-9]* /dev/dxg; do
  [ ! -c "$device" ] || exit 0
done
exec nvidia-smi -L >/dev/null 2>&1
