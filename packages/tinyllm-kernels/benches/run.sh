#!/usr/bin/env bash
# Builds one of the programs beside it for the instruction set of this machine, or for what the flags
# say, and runs it: `TINYLLM_NUM_THREADS=1 benches/run.sh attention -mavx2 -mfma -mf16c`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../native"

name=${1:-}
case $name in
  attention)
    sources=(attention.cpp attention_decode.cpp attention_plan.cpp attention_prefill.cpp kernels.cpp
      linear.cpp quantize_rows.cpp rms_norm.cpp rope.cpp run_attention.cpp scores.cpp swiglu.cpp
      thread_pool.cpp weighted_sum.cpp)
    ;;
  peak) sources=(thread_pool.cpp) ;;
  *) echo "expected attention or peak, got ${name:-nothing}" >&2 && exit 2 ;;
esac
shift
[ $# -gt 0 ] || set -- -march=native

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${CXX:-g++}" -std=c++20 -O3 -Wno-psabi -DTINYLLM_TIER=benched -DTINYLLM_TIER_NAME="\"$*\"" "$@" \
  "../benches/$name.cpp" "${sources[@]}" -o "$scratch/$name" -pthread
"$scratch/$name"
