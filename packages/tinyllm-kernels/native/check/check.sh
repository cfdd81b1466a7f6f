#!/usr/bin/env bash
# Builds check.cpp with the compiler's sanitizers and runs it; then for aarch64, under qemu, where
# the cross compiler and qemu are: `apt-get install g++-aarch64-linux-gnu qemu-user`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
common=(-std=c++20 -O1 -g -Wall -Wextra -Wno-psabi)

# build COMPILER OUTPUT TIERS... -- FLAGS...: a tier is a name, then its flags, joined by commas.
build() {
  local compiler=$1 output=$2 objects=()
  shift 2
  local tiers=()
  while [ "$1" != -- ]; do tiers+=("$1") && shift; done
  shift
  for tier in "${tiers[@]}"; do
    IFS=, read -r -a parts <<< "$tier"
    for kernel in attention attention_decode attention_prefill kernels linear rms_norm rope swiglu; do
      objects+=("$scratch/$output-${parts[0]}-$kernel.o")
      "$compiler" "${common[@]}" "$@" -DTINYLLM_TIER="${parts[0]}" \
        -DTINYLLM_TIER_NAME="\"${parts[0]}\"" "${parts[@]:1}" \
        -c "$kernel.cpp" -o "${objects[-1]}"
    done
  done
  "$compiler" "${common[@]}" "$@" check/attention.cpp check/check.cpp attention_plan.cpp product.cpp \
    run_attention.cpp thread_pool.cpp tiers.cpp "${objects[@]}" -o "$scratch/$output" -pthread
}

case $(uname -m) in
  x86_64)
    build "${CXX:-g++}" native portable avx2,-mavx2,-mfma,-mf16c \
      avx512bf16,-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl,-mavx512vnni,-mavx512bf16,-mfma,-mf16c \
      avx512vnni,-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl,-mavx512vnni,-mfma,-mf16c \
      avx512,-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl,-mfma,-mf16c \
      -- -fsanitize=address,undefined -fno-sanitize-recover=all
    ;;
  *) build "${CXX:-g++}" native portable -- -fsanitize=address,undefined -fno-sanitize-recover=all ;;
esac
echo "with AddressSanitizer and UndefinedBehaviorSanitizer:"
"$scratch/native"

if command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null; then
  build aarch64-linux-gnu-g++ aarch64 portable -- -static
  echo "for aarch64, under qemu:"
  qemu-aarch64 "$scratch/aarch64"
else
  echo "not checked for aarch64: no cross compiler or no qemu-aarch64 on this machine"
fi
