#!/usr/bin/env bash
# Build check.cpp with the compiler's sanitizers and run it for each instruction set, and threads.cpp
# with the thread sanitizer. With `apt-get install g++-aarch64-linux-gnu qemu-user`, check.cpp is
# also built for aarch64 and run under qemu. TINYLLM_TEST_ISAS=all checks all instruction sets, and
# AMX with the tiles of this machine and undefined behavior too. The default only reads the sources of
# those that this machine lacks, and of some that have most of their code in common with a faster one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# With sanitizers GCC takes half as long for -Og as for -O1, and the result runs as fast. The two
# silenced warnings are false alarms of GCC 12 about its own intrinsics. Arrays are allocations of
# their own, so that a sanitizer sees an access beyond their end.
common=(-std=c++20 -g1 -Wall -Wextra -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized -iquote . \
  -DTINYLLM_SEPARATE_ARRAYS)
sanitizers=(-Og -fsanitize=address,undefined -fno-sanitize-recover=all)

# together NAME SOURCES...: a file that includes others, because most of the time of a short file is
# that of headers. The build of the package joins fewer of them.
together() {
  local to=$scratch/$1.cpp
  printf '#include "%s"\n' "${@:2}" > "$to"
  echo "$to"
}

# The same folders as in CMakeLists.txt: kernels are compiled once for each instruction set.
kernel_sources=(matmul/{integer_part,int8_part,linear}.cpp attention/{decode,prefill,integer_prefill,amx_prefill}.cpp
  "$(together short_kernels attention/attention.cpp recurrent/*.cpp rows/*.cpp dispatch/kernel_table.cpp)")
common_sources=("$(together layers layers/*.cpp layers/products/*.cpp layers/recurrent/*.cpp)" \
  "$(together runtime runtime/*.cpp)")
check_sources=("$(together checks check/{allocations,arena,attention,bounds,check}.cpp \
  check/{layers,linear,recurrent,subnormals,token_choice}.cpp)")
# Sources that are only read take least time together.
read_sources=("$(together products matmul/*.cpp)" "$(together others attention/*.cpp recurrent/*.cpp \
  rows/*.cpp dispatch/kernel_table.cpp)")
# The programs let allocations fail: see check/allocations.cpp.
linking=(-pthread -Wl,--wrap=aligned_alloc)

# Runs the commands that it reads, one a line, on all cores. Fails if one of them fails. A line must
# not end with a space: `xargs` would append the next one.
on_all_cores() { xargs -P "$(nproc)" -L 1 env; }

compiler=${CXX:-g++}
host=$(uname -m)

# The instruction sets that are not checked, but for the fastest one of this machine, which the
# kernels choose.
left_out="x86_64:avxvnni x86_64:avx512 x86_64:avx512vnni x86_64:portable aarch64:neon aarch64:portable"
# Those that this machine cannot run.
grep -qw avx512_bf16 /proc/cpuinfo || left_out+=" x86_64:amx x86_64:avx512bf16"
[ "${TINYLLM_TEST_ISAS:-}" != all ] || left_out=
"$compiler" "${common[@]}" dispatch/{print_fastest,dispatch}.cpp -o "$scratch/print_fastest"
fastest=$("$scratch/print_fastest")
is_left_out() { [ "$2" != "$fastest" ] && [[ " $left_out " == *" $1:$2 "* ]]; }

# The instruction sets of an architecture, one a line: name, then flags. `instruction_sets` lists the
# checked ones, `instruction_sets_left_out` the others.
all_instruction_sets() { sed -n "s/^\(any\|$1\) //p" dispatch/instruction_sets.txt; }
instruction_sets() {
  all_instruction_sets "$1" | while read -r name flags; do
    is_left_out "$1" "$name" || echo "$name $flags"
  done
}
# The program of threads has portable.
instruction_sets_left_out() {
  all_instruction_sets "$1" | while read -r name flags; do
    ! is_left_out "$1" "$name" || [ "$name" = portable ] || echo "$name $flags"
  done
}

# kernel DIRECTORY NAME SOURCE COMPILER FLAGS...: the command that compiles a file for one instruction
# set.
kernel() {
  local to=$1 name=$2 source=$3
  shift 3
  echo "$1" "${common[@]}" "${@:2}" "-DTINYLLM_ISA=$name" "-DTINYLLM_ISA_NAME=\\\"$name\\\"" \
    -c "$source" -o "$to/kernels-$name-${source//\//-}.o"
}

# compilations DIRECTORY COMPILER FLAGS... -- SOURCES...: commands for files that are compiled once.
compilations() {
  local to=$1 flags=() source
  shift
  while [ "$1" != -- ]; do flags+=("$1"); shift; done
  for source in "${@:2}"; do
    echo "${flags[0]}" "${common[@]}" "${flags[@]:1}" -c "$source" -o "$to/common-${source//\//-}.o"
  done
}

# Both sanitizers take twice as long. A short run has the second one for avx2, with which the others
# have most of their code in common.
without_undefined=-fno-sanitize=undefined
short_under_qemu=short
[ "${TINYLLM_TEST_ISAS:-}" != all ] || without_undefined= short_under_qemu=

# check_build ARCHITECTURE COMPILER FLAGS...: commands that make the objects of check.cpp's program,
# the longest first.
check_build() {
  local to=$scratch/$1 source name flags
  mkdir -p "$to"
  for source in "${kernel_sources[@]}"; do
    while read -r name flags; do
      # AMX in software: a sanitizer then sees the memory that a tile is loaded from, and the check
      # runs on machines without AMX.
      [ "$name" != amx ] ||
        flags="${flags//-mamx-tile -mamx-bf16 -mamx-int8 /} -DTINYLLM_AMX_MODEL"
      case $name in amx | avx512bf16) flags+=" $without_undefined" ;; esac
      kernel "$to" "$name" "$source" "${@:2}" "$flags"
    done < <(instruction_sets "$1")
  done
  compilations "$to" "${@:2}" -- "${common_sources[@]}" dispatch/dispatch.cpp "${check_sources[@]}"
}

# link DIRECTORY COMPILER FLAGS...: objects of the plain instruction set come first, since portable
# is the last name. The linker keeps the first copy of an inline function, so a processor never meets
# instructions it lacks.
link() {
  local to=$1 compiler=$2
  shift 2
  "$compiler" "$@" "$to"/common-*.o $(ls -r "$to"/kernels-*.o) -o "$to/check" "${linking[@]}"
}

check_build "$host" "$compiler" "${sanitizers[@]}" > "$scratch/compilations"
instruction_sets "$host" | while read -r name _; do echo "$scratch/$host/check $name"; done > "$scratch/checks"

# Only these files have instructions of AMX. They are compiled for them if the check has the model, and
# a second program runs them if all instruction sets are checked and the machine has AMX.
amx_sources=(matmul/{integer_part,int8_part,linear}.cpp attention/prefill.cpp attention/amx_prefill.cpp)
amx=
amx_flags=$(instruction_sets "$host" | sed -n "s/^amx //p")
if [ "${TINYLLM_TEST_ISAS:-}" = all ] && grep -qw amx_bf16 /proc/cpuinfo; then
  amx=$scratch/amx
  echo "$amx/check amx" >> "$scratch/checks"
  echo "amx is checked with its software model and with the tiles of this machine"
elif [ -n "$amx_flags" ]; then
  echo "amx is checked with its software model"
fi
if [ -n "$amx_flags" ]; then
  mkdir "$scratch/amx"
  for source in "${amx_sources[@]}"; do
    kernel "$scratch/amx" amx "$source" "$compiler" ${amx:+"${sanitizers[@]}"} "$amx_flags" \
      >> "$scratch/compilations"
  done
fi

# Templates are instantiated, but no code is generated, which would take twice the time.
mkdir "$scratch/left_out"
for source in "${read_sources[@]}"; do
  while read -r name flags; do
    kernel "$scratch/left_out" "$name" "$source" "$compiler" "$flags -fsyntax-only" \
      >> "$scratch/compilations"
  done < <(instruction_sets_left_out "$host")
done

# The pool has a program and a sanitizer of its own, and more threads than there may be cores.
threads=$scratch/threads
mkdir "$threads"
tsan=("$compiler" -Og -fsanitize=thread)
for source in "${kernel_sources[@]}"; do
  kernel "$threads" portable "$source" "${tsan[@]}" >> "$scratch/compilations"
done
compilations "$threads" "${tsan[@]}" -- check/threads.cpp check/allocations.cpp \
  "${common_sources[@]}" >> "$scratch/compilations"
echo "TINYLLM_NUM_THREADS=4 TSAN_OPTIONS=die_after_fork=0 $threads/check" >> "$scratch/checks"

cross=
if [ "$host" != aarch64 ]; then
  if command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null; then
    cross=aarch64
    check_build aarch64 aarch64-linux-gnu-g++ -O1 >> "$scratch/compilations"
    instruction_sets aarch64 | while read -r name _; do
      echo "qemu-aarch64 -cpu max $scratch/aarch64/check $name${short_under_qemu:+ $short_under_qemu}"
    done >> "$scratch/checks"
  else
    echo "not checked for aarch64: no cross compiler or no qemu-aarch64 on this machine"
  fi
fi

on_all_cores < "$scratch/compilations"
link "$scratch/$host" "$compiler" "${sanitizers[@]}"
link "$threads" "${tsan[@]}"
[ -z "$cross" ] || link "$scratch/aarch64" aarch64-linux-gnu-g++ -static
if [ -n "$amx" ]; then
  cp --no-clobber "$scratch/$host"/*.o "$amx"
  link "$amx" "$compiler" "${sanitizers[@]}"
fi
on_all_cores < "$scratch/checks"
