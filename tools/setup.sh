#!/bin/sh
# Installs what is missing to build ("build"), to build with MLX ("mlx"), to test ("test"), to test for ARM ("arm") or to
# check ("ci") polymath, and nothing else: a second call finds everything there and returns at once. Asks no questions;
# sudo only when not root.
set -eu

group=${1:-build}
case $group in
build | mlx | test | arm | ci) ;;
*)
    echo "usage: tools/setup.sh [build|mlx|test|arm|ci]" >&2
    exit 2
    ;;
esac

debian() {
    packages="gcc libc6-dev cmake ninja-build pkg-config libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev"
    packages="$packages libmicrohttpd-dev libcurl4-openssl-dev libcmocka-dev"
    case $group in
    build) ;;
    mlx) packages="$packages g++ python3-venv" ;;
    *) packages="$packages python3-venv dpkg-dev file zsh systemd chromium chromium-driver" ;;
    esac
    [ "$group" != ci ] || packages="$packages g++ ccache clang-format clang-tidy"
    arm="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libcmocka-dev:arm64"
    case $group in
    arm) packages="gcc libc6-dev cmake ninja-build pkg-config $arm" ;;
    ci) packages="$packages $arm" ;;
    esac

    missing=
    for package in $packages; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0

    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    echo "installing:$missing" >&2
    # Word splitting of $missing and of an empty $sudo is meant.
    case $missing in
    *:arm64*) $sudo dpkg --add-architecture arm64 ;;
    esac
    $sudo apt-get update -q >&2
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing >&2
}

# Untested: nobody has run this on a Mac yet.
homebrew() {
    packages="cmake ninja pkgconf jansson pcre2 utf8proc libedit libmicrohttpd curl cmocka"
    [ "$group" = build ] || packages="$packages python@3.11"
    [ "$group" != ci ] || packages="$packages clang-format llvm"

    missing=
    for package in $packages; do
        brew list --versions "$package" >/dev/null 2>&1 || missing="$missing $package"
    done
    [ -z "$missing" ] || brew install $missing >&2
}

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    debian
elif command -v brew >/dev/null; then
    homebrew
else
    echo "tools/setup.sh knows apt-get and brew only; polymath needs a C compiler, cmake, ninja, pkg-config, jansson," \
        "pcre2, utf8proc, libedit, libmicrohttpd, libcurl and cmocka; its tests need Python 3.11 or newer with venv" >&2
fi
