#!/usr/bin/env bash
# Builds attention.cpp for the instruction set of this machine, or for what the flags say, and runs
# it: `TINYLLM_NUM_THREADS=1 benches/attention.sh -mavx2 -mfma -mf16c`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../native"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ $# -gt 0 ] || set -- -march=native
"${CXX:-g++}" -std=c++20 -O3 -Wno-psabi -DTINYLLM_TIER=benched -DTINYLLM_TIER_NAME="\"$*\"" "$@" \
  ../benches/attention.cpp attention.cpp attention_decode.cpp attention_plan.cpp \
  attention_prefill.cpp kernels.cpp linear.cpp quantize_rows.cpp rms_norm.cpp rope.cpp \
  run_attention.cpp swiglu.cpp thread_pool.cpp \
  -o "$scratch/attention" -pthread
"$scratch/attention"
