#!/usr/bin/env bash
# Installs only what a task needs and this machine lacks.
#   tools/setup.sh build   to compile everything: CMake, ninja, nvcc, googletest
#   tools/setup.sh wheel   to build a Python wheel with GPU code
#   tools/setup.sh demo    to build and run the command line; nvcc only if a GPU is visible
#   tools/setup.sh lint    the formatters and checkers
#   tools/setup.sh gpu     like build; needs no network if the machine has everything
#   tools/setup.sh test    everything, and spin
# Python packages go into .venv. If the machine has no nvcc that is new enough, one from PyPI goes
# into .venv too. System packages (apt-get, as root or through sudo) are only for what PyPI lacks.
# Without libfuse3-dev some tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

task=${1:-test}
case $task in
  build | wheel | demo | lint | gpu | test) ;;
  *) die "unknown task '$task' (build, wheel, demo, lint, gpu or test)" ;;
esac

export PATH="$PWD/.venv/bin:$PATH"

# --- System packages ---

missing=()  # names of Debian and Ubuntu packages
optional=()  # packages that only some tests need

has_header() { printf '#include <%s>\n' "$1" | g++ -E -x c++ - >/dev/null 2>&1; }
has_googletest() {
  [ -e "${GPUFS_GTEST_SOURCE_DIR:-/usr/src/googletest}/CMakeLists.txt" ] || has_header gtest/gtest.h
}
has_fuse() { has_header fuse3/fuse_opt.h; }
has_python_headers() {
  python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}
machine_python() { env PATH="${PATH//"$PWD/.venv/bin:"/}" python3 "$@"; }
has_ensurepip() { machine_python -c 'import ensurepip, venv' >/dev/null 2>&1; }
can_make_venv() { [ -e .venv ] || has_ensurepip || machine_python -m pip --version >/dev/null 2>&1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif has sudo && [ -t 0 ]; then
    sudo "$@"
  elif has sudo; then
    sudo -n "$@"
  else
    return 1
  fi
}

install_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  has apt-get || die "please install what Debian calls: ${missing[*]}"
  say "installing ${missing[*]}"
  local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  local install=("${quiet[@]}" install -y --no-install-recommends "${missing[@]}")
  # Try without an update first. Fetch the package lists only if they are absent or old.
  as_root "${install[@]}" >/dev/null 2>&1 && return 0
  as_root "${quiet[@]}" update && as_root "${install[@]}" >/dev/null && return 0
  die "could not install them; please run: apt-get install ${missing[*]}"
}

install_optional() {
  [ ${#optional[@]} -gt 0 ] || return 0
  has apt-get && as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y \
    --no-install-recommends "${optional[@]}" >/dev/null 2>&1 ||
    say "could not install ${optional[*]}: tests that need it are skipped"
}

# --- Python packages ---

has_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
  [ -n "$version" ] && [ "$(printf '3.28\n%s\n' "$version" | sort -V | head -n 1)" = 3.28 ]
}
has_build_tools() { has_cmake && has ninja; }
has_demo_modules() { python3 -c 'import nanobind, pip, rich, scikit_build_core, typer' >/dev/null 2>&1; }

make_venv() {
  if [ -e .venv ] && ! .venv/bin/python3 -c 'import pip' >/dev/null 2>&1; then
    say ".venv has no working Python: making it anew"
    rm -rf .venv
  fi
  [ ! -e .venv ] || return 0
  say "making .venv"
  if has_ensurepip; then
    machine_python -m venv .venv
  else  # Debian's python3 with pip but without python3-venv
    machine_python -m venv --without-pip .venv && machine_python -m pip --quiet --python .venv/bin/python3 install pip
  fi || { rm -rf .venv; die "could not make a virtual environment in .venv"; }
}

# Installs a requirements file once. The copy kept in .venv records what is installed.
install_requirements() {
  local stamp=.venv/installed-$1
  make_venv
  if ! cmp -s <(cat requirements-*.txt) "$stamp"; then
    say "installing $1 into .venv"
    .venv/bin/python3 -m pip install --quiet --disable-pip-version-check -r "$1" || die "pip could not install $1"
    cat requirements-*.txt >"$stamp"
  fi
}

install_nvcc() {
  python3 build_backend/find_nvcc.py >/dev/null && return 0
  make_venv
  say "installing nvcc from PyPI into .venv"
  .venv/bin/python3 -m pip install --quiet --disable-pip-version-check \
    "$(python3 build_backend/find_nvcc.py --requirement)" || die "pip could not install nvcc"
  python3 build_backend/find_nvcc.py >/dev/null || die "the nvcc from PyPI does not run on this machine"
}

# --- The tasks ---

has python3 || die "python3 is missing: please install it (3.11 or newer)"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "python3 is older than 3.11"
[ "$task" = lint ] || has g++ || missing+=(g++)

case $task in
  build | gpu)
    has_build_tools || can_make_venv || missing+=(python3-venv)
    has_googletest || missing+=(libgtest-dev)
    install_missing
    has_build_tools || install_requirements requirements-build.txt
    install_nvcc
    ;;
  wheel)
    can_make_venv || missing+=(python3-venv)
    has_python_headers || missing+=(python3-dev)
    install_missing
    install_requirements requirements-build.txt
    install_nvcc
    ;;
  demo)
    has_demo_modules && has_build_tools || can_make_venv || missing+=(python3-venv)
    has_python_headers || missing+=(python3-dev)
    install_missing
    has_demo_modules && has_build_tools || install_requirements requirements-build.txt
    ! tools/has_gpu.sh || install_nvcc
    ;;
  lint)
    can_make_venv || missing+=(python3-venv)
    install_missing
    install_requirements requirements-dev.txt
    ;;
  test)
    can_make_venv || missing+=(python3-venv)
    has_python_headers || missing+=(python3-dev)
    has_googletest || missing+=(libgtest-dev)
    has spin || missing+=(spin)
    has_fuse || optional+=(libfuse3-dev)
    install_missing
    install_optional
    install_requirements requirements-dev.txt
    install_nvcc
    ;;
esac
