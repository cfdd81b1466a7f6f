#!/usr/bin/env bash
# Build check.cpp with the compiler's sanitizers and run it for each instruction set, and threads.cpp
# with the thread sanitizer. With `apt-get install g++-aarch64-linux-gnu qemu-user`, check.cpp is
# also built for aarch64 and run under qemu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# With sanitizers GCC takes half as long for -Og as for -O1, and the result runs as fast. The two
# silenced warnings are false alarms of GCC 12 about its own intrinsics.
common=(-std=c++20 -g1 -Wall -Wextra -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized -iquote .)
sanitizers=(-Og -fsanitize=address,undefined -fno-sanitize-recover=all)

# The same folders as in CMakeLists.txt: kernels are compiled once for each instruction set.
kernel_sources=(matmul/*.cpp attention/*.cpp rows/*.cpp dispatch/kernels.cpp)
common_sources=(layers/*.cpp layers/products/*.cpp runtime/*.cpp dispatch/tiers.cpp)
check_sources=(check/attention.cpp check/check.cpp check/layers.cpp check/linear.cpp check/token_choice.cpp)

# Runs the commands that it reads, one a line, on all cores. Fails if one of them fails.
on_all_cores() { xargs -P "$(nproc)" -L 1 env; }

# tiers ARCHITECTURE: the instruction sets of that architecture, one a line: name, then flags.
tiers() { sed -n "s/^\(any\|$1\) //p" dispatch/tiers.txt; }

# compilations ARCHITECTURE COMPILER FLAGS...: commands that make the objects of one build, the
# longest first.
compilations() {
  local architecture=$1 compiler=$2 to=$scratch/$1 source name flags
  shift 2
  mkdir -p "$to"
  for source in "${kernel_sources[@]}"; do
    while read -r name flags; do
      # AMX in software: a sanitizer then sees the memory that a tile is loaded from, and the check
      # runs on machines without AMX. TINYLLM_REAL_TILES=1 checks the instructions themselves.
      if [ "$name" = amx ] && [ -z "${TINYLLM_REAL_TILES:-}" ]; then
        flags="${flags//-mamx-tile -mamx-bf16 /} -DTINYLLM_MODELED_TILES"
      fi
      echo "$compiler" "${common[@]}" "$@" "-DTINYLLM_TIER=$name" "-DTINYLLM_TIER_NAME=\\\"$name\\\"" \
        "$flags" -c "$source" -o "$to/tier-$name-${source//\//-}.o"
    done < <(tiers "$architecture")
  done
  for source in "${check_sources[@]}" "${common_sources[@]}"; do
    echo "$compiler" "${common[@]}" "$@" -c "$source" -o "$to/common-${source//\//-}.o"
  done
}

# link ARCHITECTURE COMPILER FLAGS...: objects of the plain instruction set come first. The linker
# keeps the first copy of an inline function, so a processor never meets instructions it lacks.
link() {
  local architecture=$1 compiler=$2 to=$scratch/$1
  shift 2
  "$compiler" "$@" "$to"/common-*.o "$to"/tier-portable-*.o \
    $(ls "$to"/tier-*.o | grep -v tier-portable-) -o "$to/check" -pthread
}

host=$(uname -m)
compilations "$host" "${CXX:-g++}" "${sanitizers[@]}" > "$scratch/compilations"
# The pool has a program and a sanitizer of its own, and more threads than there may be cores.
echo "${CXX:-g++}" "${common[@]}" -Og -fsanitize=thread check/threads.cpp runtime/product_order.cpp \
  runtime/thread_pool.cpp -o "$scratch/threads" -pthread >> "$scratch/compilations"
tiers "$host" | while read -r name _; do echo "$scratch/$host/check $name"; done > "$scratch/checks"
echo "TINYLLM_NUM_THREADS=4 $scratch/threads" >> "$scratch/checks"

cross=
if [ "$host" != aarch64 ]; then
  if command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null; then
    cross=aarch64
    compilations aarch64 aarch64-linux-gnu-g++ -O1 >> "$scratch/compilations"
    tiers aarch64 | while read -r name _; do
      echo "qemu-aarch64 -cpu max $scratch/aarch64/check $name"
    done >> "$scratch/checks"
  else
    echo "not checked for aarch64: no cross compiler or no qemu-aarch64 on this machine"
  fi
fi

on_all_cores < "$scratch/compilations"
link "$host" "${CXX:-g++}" "${sanitizers[@]}"
[ -z "$cross" ] || link aarch64 aarch64-linux-gnu-g++ -static
on_all_cores < "$scratch/checks"
