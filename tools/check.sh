#!/bin/sh
# The static checks: layout by clang-format, then clang-tidy over every C file of the release build. Both change nothing.
set -eu
cd "$(dirname "$0")/.."

git ls-files '*.c' '*.cpp' '*.h' | xargs clang-format --dry-run -Werror

[ -f build/release/compile_commands.json ] || cmake --preset release --log-level=WARNING >/dev/null
git ls-files 'src/*.c' |
    timeout 600 xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 4 clang-tidy -p build/release --quiet
