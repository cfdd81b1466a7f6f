#!/usr/bin/env bash
# Runs metalhost's tests with every supported compiler on this machine: each version of g++ and
# clang++ by its numbered name, and g++ for AArch64, whose programs run under qemu. Prints the
# compilers that are missing. Run `bash packages/metalhost/tools/every_compiler.sh` in a synced
# workspace.
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
    echo "missing: $compiler"
  fi
done

cross=aarch64-linux-gnu-g++
if command -v "$cross" > /dev/null && command -v qemu-aarch64 > /dev/null; then
  check "$cross" "qemu-aarch64 -L /usr/aarch64-linux-gnu"
else
  echo "missing: $cross with qemu-aarch64"
fi
