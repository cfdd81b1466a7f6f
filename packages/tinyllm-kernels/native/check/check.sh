#!/usr/bin/env bash
# Builds check.cpp with the compiler's sanitizers and runs it, and threads.cpp with the one for
# threads; check.cpp also for aarch64, under qemu, where the cross compiler and qemu are:
# `apt-get install g++-aarch64-linux-gnu qemu-user`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# With sanitizers GCC takes half as long for -Og as for -O1, and the result runs as fast. What is
# silenced are warnings of GCC 12 about its own intrinsics; the build of the package has its own.
common=(-std=c++20 -g1 -Wall -Wextra -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized)
sanitizers=(-Og -fsanitize=address,undefined -fno-sanitize-recover=all)

# Runs the commands that it reads, one a line, on all cores. Fails if one of them fails.
on_all_cores() { xargs -P "$(nproc)" -L 1 env; }

# compilations BUILD COMPILER TIERS... -- FLAGS...: commands that make the objects of a build, those
# that take longest first. A tier is a name, then its flags, joined by commas.
compilations() {
  local to=$scratch/$1 compiler=$2 tiers=() parts source
  shift 2
  while [ "$1" != -- ]; do tiers+=("$1") && shift; done
  shift
  mkdir "$to"
  for source in linear attention_decode attention_prefill attention rope quantize_rows rms_norm scores swiglu weighted_sum kernels; do
    for tier in "${tiers[@]}"; do
      IFS=, read -r -a parts <<< "$tier"
      echo "$compiler" "${common[@]}" "$@" "-DTINYLLM_TIER=${parts[0]}" "${parts[@]:1}" \
        "-DTINYLLM_TIER_NAME=\\\"${parts[0]}\\\"" -c "$source.cpp" -o "$to/$source-${parts[0]}.o"
    done
  done
  for source in check/attention check/blocks check/check check/choice check/linear attention_block attention_plan choice mlp_block product product_order run_attention thread_pool tiers; do
    echo "$compiler" "${common[@]}" "$@" -c "$source.cpp" -o "$to/${source//\//-}.o"
  done
}

native=(portable)
arm=(neon,-march=armv8.2-a+dotprod neonbf16,-march=armv8.2-a+dotprod+bf16+i8mm)
if [ "$(uname -m)" = x86_64 ]; then
  native+=(avx2,-mavx2,-mfma,-mf16c)
  wide=-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl,-mfma,-mf16c
  native+=("avx512,$wide" "avx512vnni,$wide,-mavx512vnni")
  native+=("avx512bf16,$wide,-mavx512vnni,-mavx512bf16")
  # In software, where a sanitizer sees what a tile is loaded from, and on machines without AMX.
  native+=("amx,$wide,-mavx512vnni,-mavx512bf16,-DTINYLLM_MODELED_TILES")
else
  native+=("${arm[@]}")
fi
compilations native "${CXX:-g++}" "${native[@]}" -- "${sanitizers[@]}" > "$scratch/compilations"
# The pool has a program and a sanitizer of its own, and more threads than there may be cores.
echo "${CXX:-g++}" "${common[@]}" -Og -fsanitize=thread check/threads.cpp product_order.cpp thread_pool.cpp \
  -o "$scratch/threads" -pthread >> "$scratch/compilations"
for tier in "${native[@]}"; do echo "$scratch/native/check ${tier%%,*}"; done > "$scratch/checks"
echo "TINYLLM_NUM_THREADS=4 $scratch/threads" >> "$scratch/checks"

if command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null; then
  compilations aarch64 aarch64-linux-gnu-g++ portable "${arm[@]}" -- -O1 \
    >> "$scratch/compilations"
  for tier in portable "${arm[@]}"; do
    echo "qemu-aarch64 -cpu max $scratch/aarch64/check ${tier%%,*}" >> "$scratch/checks"
  done
else
  echo "not checked for aarch64: no cross compiler or no qemu-aarch64 on this machine"
fi

on_all_cores < "$scratch/compilations"
"${CXX:-g++}" "${sanitizers[@]}" "$scratch"/native/*.o -o "$scratch/native/check" -pthread
if [ -d "$scratch/aarch64" ]; then
  aarch64-linux-gnu-g++ -static "$scratch"/aarch64/*.o -o "$scratch/aarch64/check" -pthread
fi
on_all_cores < "$scratch/checks"
