#!/usr/bin/env bash
# Build one of the programs beside this file for the instruction set of this machine, or for the
# given compiler flags, and run it:
#   TINYLLM_NUM_THREADS=1 native/bench/run.sh attention -mavx2 -mfma -mf16c
# BENCH_ARGUMENTS has the arguments of the program: for `products` the bits of a code, a group,
# `decode` or `prefill`, and `int8` for x in int8.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=${1:-}
case $name in
  attention | products | recurrent)
    sources=(matmul/*.cpp attention/*.cpp recurrent/*.cpp rows/*.cpp dispatch/kernel_table.cpp layers/*.cpp
      layers/products/*.cpp layers/recurrent/*.cpp runtime/*.cpp)
    ;;
  peak) sources=(runtime/*.cpp) ;;
  *) echo "program: expected attention, products, recurrent or peak, got ${name:-nothing}" >&2 && exit 2 ;;
esac
shift
[ $# -gt 0 ] || set -- -march=native

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${CXX:-g++}" -std=c++20 -O3 -Wno-psabi -iquote . -DTINYLLM_ISA=benched -DTINYLLM_ISA_NAME="\"$*\"" \
  -falign-functions=64 -falign-loops=64 \
  "$@" "bench/$name.cpp" "${sources[@]}" -o "$scratch/$name" -pthread
"$scratch/$name" ${BENCH_ARGUMENTS:-}
