#!/bin/sh
# Removes what `make install` puts below $DESTDIR$PREFIX: whatever an installation into an empty folder consists of, and
# the folders of polymath's own that are empty then.
set -eu
cd "$(dirname "$0")/.."

fresh=build/uninstall
rm -rf "$fresh"
trap 'rm -rf "$fresh"' EXIT
DESTDIR="$PWD/$fresh" cmake --install build/release --prefix "$PREFIX" >/dev/null
rm -f build/release/install_manifest.txt

(cd "$fresh" && find . -depth ! -type d) | while IFS= read -r file; do
    rm -f -- "${DESTDIR:-}/$file"
done
(cd "$fresh" && find . -depth -type d -path '*/polymath*') | while IFS= read -r folder; do
    rmdir -- "${DESTDIR:-}/$folder" 2>/dev/null || true
done
