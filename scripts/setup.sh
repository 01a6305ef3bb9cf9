#!/bin/sh
# Make this checkout ready: the Debian packages it needs, and a virtual environment in .venv.
#   scripts/setup.sh EXTRA…      extras of pyproject.toml, e.g. demo test
# Exits 69 and prints the one apt command where a package is missing and we are not root.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build
log=build/setup.log

missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need arm-none-eabi-gcc gcc-arm-none-eabi
need qemu-system-arm qemu-system-arm
need cmake cmake
need ninja ninja-build
need cc "gcc libc6-dev"
[ -e /usr/lib/arm-none-eabi/include/stdint.h ] || command -v arm-none-eabi-gcc >/dev/null 2>&1 && echo '#include <string.h>' | arm-none-eabi-gcc -E - >/dev/null 2>&1 \
  || missing="$missing libnewlib-arm-none-eabi"
python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
if [ -n "$missing" ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup: missing packages; run: sudo apt-get install -y$missing" >&2
    exit 69
  fi
  echo "setup: installing$missing"
  if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt could not install$missing; the whole log is $log" >&2
    exit 69
  fi
fi

[ -x .venv/bin/python ] || { echo "setup: making the virtual environment .venv"; python3 -m venv .venv; }
for extra in "$@"; do
  stamp=.venv/ready-$extra
  [ -e "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && continue
  echo "setup: installing mcugrad[$extra]"
  if ! .venv/bin/pip install -q --disable-pip-version-check -e ".[$extra]" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: pip could not install mcugrad[$extra]; the whole log is $log" >&2
    exit 69
  fi
  touch "$stamp"
done
