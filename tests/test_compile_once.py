"""`tools/compile_once.py` compiles the same code once, and never gives the object of other code."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "compile_once.py"
SOURCE = '#include "value.h"\nint value(void) { return VALUE + MORE; }\n'


@pytest.fixture
def build(tmp_path):
    """Return a function that compiles in a folder; it returns the object, and how many there are.

    The tool is a copy, so that its objects are apart; the compiler notes how often it compiles.
    """
    tool = tmp_path / "tools" / TOOL.name
    tool.parent.mkdir()
    tool.write_bytes(TOOL.read_bytes())
    compiler, log = tmp_path / "cc", tmp_path / "log"
    noted = f'case "$*" in *-E*) ;; *) echo >> "{log}";; esac'
    compiler.write_text(f'#!/bin/sh\n{noted}\nexec cc "$@"\n')
    compiler.chmod(0o755)
    log.touch()

    def build(folder, *flags, value=1, more=2, source=SOURCE):
        folder = tmp_path / folder
        (folder / "include").mkdir(parents=True, exist_ok=True)
        (folder / "include" / "value.h").write_text(f"#define VALUE {value}\n")
        (folder / "value.c").write_text(source)
        command = [*flags, "-Iinclude", f"-DMORE={more}", "-c", "value.c", "-o", "value.o"]
        run = [sys.executable, "-IS", str(tool), str(compiler), *command]
        subprocess.run(run, cwd=folder, check=True, capture_output=True)
        built = (folder / "value.o").read_bytes()
        subprocess.run(["cc", *command], cwd=folder, check=True, capture_output=True)
        assert built == (folder / "value.o").read_bytes()
        return len(log.read_text())

    build.compiler = compiler
    return build


def test_the_same_code_is_compiled_once(build):
    assert build("one", "-O2", "-g", "-g0") == 1
    assert build("one", "-O2", "-g", "-g0") == 1
    assert build("another", "-Wall", "-O2", "-g", "-g0", "-D", "UNUSED") == 1


def test_other_code_is_compiled_again(build):
    """Each call differs from all before it; debug information names the folder."""
    assert build("one", "-O2") == 1
    assert build("one", "-O2", value=3) == 2
    assert build("one", "-O2", more=5) == 3
    assert build("one", "-O1") == 4
    assert build("one", "-O2", "-fPIC") == 5
    assert build("one", "-O2", source=SOURCE + "int x;\n") == 6
    assert build("one", "-O2", "-Werror") == 7
    assert build("one", "-O2", "-g") == 8
    assert build("another", "-O2", "-g") == 9
    build.compiler.write_text(build.compiler.read_text() + "\n")
    assert build("one", "-O2") == 10
    assert build("one", "-O2") == 10


def test_errors_and_other_commands_are_those_of_the_compiler(build, tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as error:
        build("one", source="int value(void) { return; + }\n")
    assert b"value.c:1:" in error.value.stderr
    with pytest.raises(subprocess.CalledProcessError) as error:
        build("one", source='#include "missing.h"\n')
    assert b"missing.h" in error.value.stderr
    assert build("one", source="int main(void) { return 7; }\n") > 0
    run = [sys.executable, "-IS", str(TOOL), "cc"]
    subprocess.run([*run, "one/value.o", "-o", "program"], cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "program")]).returncode == 7
    subprocess.run([*run, "-O1", "one/value.c", "-o", "two"], cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "two")]).returncode == 7
