#!/bin/sh
# Makes a virtual environment: tools/venv.sh FOLDER REQUIREMENTS... [--no-deps REQUIREMENTS]. What follows --no-deps is
# installed without what it needs. Does nothing when that was done for the same requirements and the same interpreter.
set -eu
cd "$(dirname "$0")/.."

folder=$1
shift
with=
without=
all=
option=with
for file in "$@"; do
    case $file in
    --no-deps) option=without ;;
    *)
        [ "$option" = with ] && with="$with -r $file" || without="$without -r $file"
        all="$all $file"
        ;;
    esac
done

# Word splitting of the lists of files is meant; their names have no spaces.
stamp="$(python3 -V) $(cat $all | cksum)"
[ "$(cat "$folder/stamp" 2>/dev/null || true)" != "$stamp" ] || exit 0

echo "making $folder, a virtual environment of Python" >&2
rm -rf "$folder"
python3 -m venv "$folder"
pip="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
[ -z "$with" ] || $pip $with
[ -z "$without" ] || $pip --no-deps $without
echo "$stamp" >"$folder/stamp"
