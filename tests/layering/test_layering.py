"""A file includes only headers of its own layer and of the layers before it; docs/architecture.md has the list."""

import re

import pytest

LAYERS = ["public", "base", "files", "text", "backend", "model", "engine", "surface"]
FOLDERS = {"include": "public", "src/cli": "surface", "src/server": "surface"} | {
    f"src/{layer}": layer for layer in LAYERS[1:-1]
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def folder_of(path):
    """The folder of FOLDERS that holds `path` (relative, posix), or None."""
    return next((folder for folder in FOLDERS if path.startswith(folder + "/")), None)


def included(source, file, quote, name):
    """The project's file behind an #include, relative to the source tree; None for a system header."""
    places = [file.parent, source / "src", source / "include"] if quote == '"' else [source / "src", source / "include"]
    for place in places:
        target = (place / name).resolve()
        if target.is_file():
            return target.relative_to(source).as_posix()
    assert quote == "<", f'{file.relative_to(source)} includes "{name}", which does not exist'
    return None


def fault(path, target):
    """Why `path` must not include `target`, or None."""
    layer, other = FOLDERS[folder_of(path)], FOLDERS[folder_of(target)]
    if LAYERS.index(other) > LAYERS.index(layer):
        return f"layer {layer} must not use layer {other}"
    if layer == "surface" and other not in ("public", "surface"):
        return "the command line and the server use only the public header"
    if layer == other == "surface" and folder_of(path) != folder_of(target) and target != "src/server/server.h":
        return "of the server the command line knows server.h only, and the server nothing of the command line"
    if target.startswith("src/backend/") and target.count("/") > 2:
        device = target.split("/")[2]
        if not path.startswith(f"src/backend/{device}/"):
            return f"outside backend/{device} only backend.h is known"
    return None


def test_layers(source):
    files = [f for top in ("include", "src") for f in sorted((source / top).rglob("*")) if f.suffix in (".c", ".cpp", ".h")]
    assert files, "no sources found"
    faults = []
    for file in files:
        path = file.relative_to(source).as_posix()
        if folder_of(path) is None:
            faults.append(f"{path}: in no layer's folder")
            continue
        for quote, name in INCLUDE.findall(file.read_text()):
            target = included(source, file, quote, name)
            why = target and fault(path, target)
            if why:
                faults.append(f"{path} includes {target}: {why}")
    assert not faults, "\n".join(faults)


def test_public_header_needs_only_the_c_library(source):
    names = INCLUDE.findall((source / "include/polymath.h").read_text())
    assert names == [("<", "stdbool.h"), ("<", "stddef.h"), ("<", "stdint.h")]


@pytest.mark.parametrize(
    "path, target, allowed",
    [
        ("src/base/pool.c", "src/base/base.h", True),
        ("src/base/pool.c", "src/files/config.h", False),
        ("src/model/qwen.c", "src/backend/backend.h", True),
        ("src/model/qwen.c", "src/backend/cpu/cpu.h", False),
        ("src/engine/engine.c", "src/backend/cpu/cpu.h", False),
        ("src/backend/cpu/moe.c", "src/model/model.h", False),
        ("src/cli/main.c", "include/polymath.h", True),
        ("src/cli/main.c", "src/base/base.h", False),
        ("src/cli/main.c", "src/server/http.h", False),
        ("src/cli/main.c", "src/server/server.h", True),
        ("src/server/http.c", "src/cli/cli.h", False),
    ],
)
def test_the_rule_itself(path, target, allowed):
    assert (fault(path, target) is None) == allowed


def test_no_family_in_engine(source):
    """Sessions, snapshots, saved files and commands treat all families alike: none of their names is there."""
    families = {
        name
        for file in (source / "src" / "model").glob("*.c")
        for names in re.findall(r'\.(?:name|model_types) = "([^"]+)"', file.read_text())
        for name in names.split()
    }
    assert {"lfm2", "nemotron_h", "qwen3_5_moe"} <= families
    strings = re.compile(r"/\*.*?\*/|\"(?:[^\"\\]|\\.)*\"|\w+", re.DOTALL)
    faults = []
    for folder in ("engine", "cli", "server"):
        for file in sorted((source / "src" / folder).glob("*.[ch]")):
            words = set(re.findall(r"\w+", " ".join(t for t in strings.findall(file.read_text()) if t[:2] != "/*")))
            faults += [f"{file.relative_to(source).as_posix()}: {name}" for name in sorted(words & families)]
    assert not faults, "\n".join(faults)
