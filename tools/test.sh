#!/bin/sh
# Builds a preset and runs all tests on it: tools/test.sh release|debug|asan. $MODELS may name a directory of further
# checkpoints. Fails when anything fails; the C tests do not keep the Python tests from running.
set -eu
cd "$(dirname "$0")/.."

preset=$1
models=
if [ -n "${MODELS:-}" ]; then
    models=$(cd "$MODELS" && pwd) || exit 1
fi

cmake --preset "$preset" --log-level=WARNING "-DPM_MODELS=$models" >/dev/null
cmake --build --preset "$preset"

# A refused allocation returns NULL, as it does without AddressSanitizer.
export ASAN_OPTIONS=allocator_may_return_null=1
# libedit does not free what keys are bound to.
export LSAN_OPTIONS=suppressions=$PWD/tests/leaks.txt:print_suppressions=0

# What is packaged is the release build; the others can be neither linked statically nor without their sanitizer. A
# browser has no sanitizer, and what takes a measure says little under one. What a sixth of many like cases does not show
# it, the others will not.
only=
[ "$preset" = release ] || only="--thin 6 --ignore=tests/package --ignore=tests/server/test_page.py \
    --ignore=tests/parity --ignore=tests/cli/test_bench.py --ignore=tests/cli/test_perplexity.py"

failed=0
ctest --preset "$preset" || failed=1
.venv/bin/python -m pytest -q -p no:cacheprovider -n 2 --dist worksteal tests $only --build-dir "build/$preset" \
    --models "$models" || failed=1
exit $failed
