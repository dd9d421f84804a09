#!/bin/sh
# The static checks: layout by clang-format, then clang-tidy over every C file. Both change nothing.
set -eu
cd "$(dirname "$0")/.."

git ls-files '*.c' '*.cpp' '*.h' | xargs clang-format --dry-run -Werror

# Files for a processor are looked at as they are built for it.
tidy() {
    [ -f "build/$1/compile_commands.json" ] || cmake --preset "$1" --log-level=WARNING >/dev/null
    timeout 600 xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 4 clang-tidy -p "build/$1" --quiet
}
git ls-files 'src/*.c' ':!src/*_neon*.c' | tidy release
git ls-files 'src/*_neon*.c' | tidy aarch64
