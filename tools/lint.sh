#!/usr/bin/env bash
# Checks format, lint rules and types of all sources. With `fix`, the tools fix what they can.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

case ${1:-check} in
  check) format=(--dry-run -Werror) ruff_format=(--check) ruff_check=() ;;
  fix) format=(-i) ruff_format=() ruff_check=(--fix) ;;
  *) echo "usage: $0 [check|fix]" >&2 && exit 2 ;;
esac

failed=0
mapfile -d '' sources < <(find include src apps benchmarks tests python examples gdev -type f \
  \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inl' \) -print0)
clang-format "${format[@]}" "${sources[@]}" || failed=1
ruff format "${ruff_format[@]}" . || failed=1
ruff check "${ruff_check[@]}" . || failed=1
mypy || failed=1
python3 tools/check_layers.py || failed=1
for script in tools/*.sh models/*.sh .ci/run; do
  [ ! -e "$script" ] || bash -n "$script" || failed=1
done
exit $failed
