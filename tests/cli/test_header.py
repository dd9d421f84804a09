"""The example at the head of the public header compiles as it stands."""

import re
import subprocess


def test_example_compiles(source, build_dir, tmp_path):
    header = (source / "include/polymath.h").read_text()
    lines = re.findall(r"^ \*     (.*)$", header.partition("#ifndef")[0], re.MULTILINE)
    assert any("pm_generate" in line for line in lines)
    program = tmp_path / "example.c"
    body = "\n".join(lines)
    program.write_text(f"#include <polymath.h>\n#include <stdio.h>\nint main(void)\n{{\n{body}\nreturn 0;\n}}\n")
    cache = (build_dir / "CMakeCache.txt").read_text()
    compiler = re.search(r"^CMAKE_C_COMPILER:\w+=(.+)$", cache, re.MULTILINE).group(1)
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{source}/include", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
