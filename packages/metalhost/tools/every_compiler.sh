#!/usr/bin/env bash
# metalhost's tests with every compiler of this machine that it is written for: `g++` and `clang++` of
# each version by its number, and g++ for AArch64, whose programs run under qemu. Which of them are not
# here is said. `bash packages/metalhost/tools/every_compiler.sh` in a synced workspace.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

check() {
  printf '\n=== %s\n' "$1"
  METALHOST_CXX=$1 METALHOST_EMULATOR=${2-} uv run --no-sync pytest -q packages/metalhost
}

for compiler in g++-{12..15} clang++-{16..21}; do
  if command -v "$compiler" > /dev/null; then
    check "$compiler"
  else
    echo "no $compiler"
  fi
done

cross=aarch64-linux-gnu-g++
if command -v "$cross" > /dev/null && command -v qemu-aarch64 > /dev/null; then
  check "$cross" "qemu-aarch64 -L /usr/aarch64-linux-gnu"
else
  echo "no $cross with qemu-aarch64"
fi
