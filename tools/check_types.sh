#!/usr/bin/env bash
# mypy over tests and tools: `bash tools/check_types.sh [FOLDER ...]`, all folders by default.
#
# Each member is checked alone, because members have test files of the same name. The mode is strict
# with four relaxations, because MLX's stubs give unions such as `array | dict | tuple` and Any. A
# wrong attribute, index or operand of a union raises when the test runs. `type: ignore` marks lines
# that mypy cannot follow: settings passed as `**`, arrays passed as `*`, and stand-ins in tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

relaxed=(union-attr index operator no-any-return)
flags=(--strict --explicit-package-bases --cache-dir .mypy_cache/tests)
for code in "${relaxed[@]}"; do flags+=(--disable-error-code "$code"); done

check() { # check ROOTS MYPY_ARGUMENTS...
  MYPYPATH=$1 uv run --no-sync mypy "${flags[@]}" "${@:2}"
}

failed=0
[ $# -gt 0 ] || set -- packages/*/tests apps/*/tests tests tools
for folder in "$@"; do
  echo "$folder"
  case $folder in
    tools)
      check tools:tools/pico:tools/shaped_ranks tools --exclude tools/measured || failed=1
      check tools/measured tools/measured || failed=1
      ;;
    tests) check tests:tools tests || failed=1 ;;
    *) check "$folder" "$folder" || failed=1 ;;
  esac
done
exit $failed
