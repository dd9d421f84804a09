"""`make install`: what lies where, that it works there, and that a program can be built on it and nothing else."""

import os
import re
import shutil
import subprocess

import pytest

PREFIX = "opt/polymath"
QUESTION = "What is a dog?"


def run(*command, **kwargs):
    """stdout of a command that must succeed, as text."""
    done = subprocess.run(
        [str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **kwargs
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def make(source, target, stage):
    """`make TARGET` into the folder `stage`, free of what a make that runs the tests hands down."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("MFLAGS", "PREFIX", "DESTDIR")}
    return run("make", "-C", source, target, f"PREFIX=/{PREFIX}", f"DESTDIR={stage}", env=env)


def files(folder):
    """Every file and link below a folder, relative to it."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}


@pytest.fixture(scope="module")
def version(source):
    return re.search(r'PM_VERSION "(.*)"', (source / "include/polymath.h").read_text()).group(1)


@pytest.fixture(scope="module")
def soversion(version):
    major, minor, _ = version.split(".")
    return major if major != "0" else f"0.{minor}"


@pytest.fixture(scope="module")
def api(source):
    """The functions that the header declares with PM_API."""
    names = re.findall(r"^PM_API [^;(]*?\b(pm_\w+)\(", (source / "include/polymath.h").read_text(), re.MULTILINE)
    assert len(names) > 20 and len(names) == len(set(names))
    return set(names)


@pytest.fixture(scope="module")
def installed(source, build_dir, tmp_path_factory):
    """The installed tree, in another place than the prefix says."""
    assert build_dir == source / "build" / "release", "`make install` installs the release build: test that one"
    stage = tmp_path_factory.mktemp("stage")
    make(source, "install", stage)
    return stage / PREFIX


@pytest.fixture(scope="module")
def lib(installed):
    """The folder of the libraries, whose name differs between systems."""
    return next(installed.rglob("libpolymath.a")).parent


@pytest.fixture(scope="module")
def answer(polymath):
    return run(polymath, "run", QUESTION)


def test_what_is_installed(source, installed, lib, version, soversion):
    libdir = lib.relative_to(installed).as_posix()
    model = {p.name for p in (source / "models/default").iterdir() if not p.name.startswith("oracle_")}
    assert files(installed) == {
        "bin/polymath",
        "include/polymath.h",
        "lib/systemd/system/polymath.service",
        "lib/systemd/system/polymath.socket",
        f"{libdir}/libpolymath.a",
        f"{libdir}/libpolymath.so",
        f"{libdir}/libpolymath.so.{soversion}",
        f"{libdir}/libpolymath.so.{version}",
        f"{libdir}/pkgconfig/polymath.pc",
        "share/bash-completion/completions/polymath",
        "share/doc/polymath/copyright",
        "share/man/man1/polymath.1",
        "share/zsh/site-functions/_polymath",
    } | {f"share/polymath/models/default/{name}" for name in model}
    copyright = (installed / "share/doc/polymath/copyright").read_text()
    for licence in "LICENSE", "models/default/NOTICE":
        assert (source / licence).read_text() in copyright


def test_shared_library_has_its_version(lib, version, soversion):
    assert (lib / "libpolymath.so").resolve().name == f"libpolymath.so.{version}"
    assert f"[libpolymath.so.{soversion}]" in run("readelf", "-d", lib / "libpolymath.so")


def test_shared_library_exports_the_header_and_nothing_else(lib, api):
    symbols = [line.split() for line in run("nm", "-D", "--defined-only", lib / "libpolymath.so").splitlines()]
    assert {symbol[-1] for symbol in symbols} == api


def test_static_library_takes_no_names_but_its_own(lib):
    symbols = run("nm", "-g", "--defined-only", "--format=posix", lib / "libpolymath.a")
    names = re.findall(r"^(\w+) \w ", symbols, re.MULTILINE)
    assert len(names) > 100
    assert [name for name in names if not name.startswith("pm_")] == []


def test_nothing_names_the_folder_it_was_built_in(source, build_dir, installed):
    for name in files(installed):
        content = (installed / name).read_bytes()
        for folder in build_dir, source / "src", source / "include", source / "packaging", source / "models":
            assert os.fsencode(folder) not in content, f"{name} names {folder}"


def test_command_answers_from_where_it_lies(installed, answer, tmp_path):
    assert run(installed / "bin/polymath", "run", QUESTION, cwd=tmp_path) == answer
    (tmp_path / "link").symlink_to(installed / "bin/polymath")
    assert run(tmp_path / "link", "run", QUESTION, cwd="/") == answer
    verbose = subprocess.run(
        [installed / "bin/polymath", "run", "--verbose", QUESTION], capture_output=True, text=True, check=True
    )
    assert str(installed / "share/polymath/models/default") in verbose.stderr


@pytest.fixture(scope="module", params=["shared", "static"])
def generate(request, source, installed, lib, soversion, tmp_path_factory):
    """examples/generate.c as someone else would build it: a function that runs it and returns how it ended."""
    static = ["-static"] if request.param == "static" else []
    env = {**os.environ, "PKG_CONFIG_PATH": str(lib / "pkgconfig")}
    flags = run("pkg-config", *["--static"] * len(static), "--cflags", "--libs", "polymath", env=env).split()
    program = tmp_path_factory.mktemp(request.param) / "generate"
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run("cc", *warnings, *static, source / "examples/generate.c", "-o", program, *flags, cwd=program.parent)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", program))
    assert needed == [] if static else f"libpolymath.so.{soversion}" in needed

    def call(*args):
        return subprocess.run(
            [program, *args], capture_output=True, text=True, timeout=120, env={**os.environ, "LD_LIBRARY_PATH": str(lib)}
        )

    return call


def test_example_is_short_and_uses_only_the_public_header(source):
    text = (source / "examples/generate.c").read_text()
    assert text.count("\n") < 40
    headers = set(re.findall(r"#include .([\w./]+).", text))
    assert headers == {"polymath.h", "stdio.h", "stdlib.h", "string.h"}


@pytest.mark.parametrize("question", [QUESTION, 'What is "a\\b"\n\tor an émigré?'])
def test_example_answers_as_the_command(generate, installed, polymath, question):
    done = generate(installed / "share/polymath/models/default", question)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(polymath, "run", "--", installed / "share/polymath/models/default", question)


def test_example_says_what_is_wrong(generate, tmp_path):
    done = generate(tmp_path / "nowhere", QUESTION)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path / "nowhere") in done.stderr
    assert generate(tmp_path).returncode == 2


def test_pkg_config_knows_the_version(lib, version):
    env = {**os.environ, "PKG_CONFIG_PATH": str(lib / "pkgconfig")}
    assert run("pkg-config", "--modversion", "polymath", env=env) == f"{version}\n"
    assert "jansson" not in run("pkg-config", "--libs", "polymath", env=env), "only --static needs what we stand on"


def test_uninstall_leaves_what_is_not_ours(source, installed, tmp_path):
    tree = tmp_path / PREFIX
    shutil.copytree(installed, tree, symlinks=True)
    foreign = {"bin/other", "share/polymath/models/mine/config.json", "share/man/man1/other.1"}
    for name in foreign:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    make(source, "uninstall", tmp_path)
    assert files(tree) == foreign
    assert not (tree / "share/polymath/models/default").exists() and not (tree / "share/doc/polymath").exists()


@pytest.fixture(scope="module")
def package(build_dir, installed, tmp_path_factory):
    """The Debian package."""
    if not shutil.which("dpkg-query"):
        pytest.skip("no Debian packages on a system without dpkg")
    assert shutil.which("dpkg-shlibdeps") and shutil.which("file"), "tools/setup.sh test installs dpkg-dev and file"
    folder = tmp_path_factory.mktemp("deb")
    run("cpack", "--config", build_dir / "CPackConfig.cmake", "-B", folder)
    (package,) = folder.glob("*.deb")
    return package


def test_debian_package_says_what_it_is(package, version):
    name, release, arch = run("dpkg-deb", "-f", package, "Package", "Version", "Architecture").splitlines()
    assert (name, release) == ("Package: polymath", f"Version: {version}")
    assert package.name == f"polymath_{version}_{arch.split()[1]}.deb"
    depends = run("dpkg-deb", "-f", package, "Depends")
    for library in "libc6", "libjansson4", "libpcre2-8-0", "libutf8proc", "libedit2", "libmicrohttpd12":
        assert re.search(rf"\b{library}\S* \(>= ", depends), f"{library} is not in {depends}"
    assert len(run("dpkg-deb", "-f", package, "Description").splitlines()) > 2
    assert run("dpkg-deb", "-I", package, "shlibs").startswith("libpolymath ")


def test_debian_package_works(package, installed, lib, answer, tmp_path):
    run("dpkg-deb", "-x", package, tmp_path / "root")
    root = tmp_path / "root/usr"
    moved = {
        "share/man/man1/polymath.1": "share/man/man1/polymath.1.gz",
        "share/zsh/site-functions/_polymath": "share/zsh/vendor-completions/_polymath",
    }
    libdir = lib.relative_to(installed).as_posix()
    expected = {moved.get(name, name) for name in files(installed)}
    assert {re.sub("^lib/(?!lib|pkg|systemd)[^/]+", "lib", name) for name in files(root)} == {
        re.sub(f"^{libdir}/", "lib/", name) for name in expected
    }
    assert run(root / "bin/polymath", "run", QUESTION, cwd=tmp_path) == answer
