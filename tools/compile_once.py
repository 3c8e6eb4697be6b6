"""Run a C compiler, and keep what it made, so that the same is not compiled twice.

``CC="python3 tools/compile_once.py gcc" pip install .`` puts each object into `build/objects`, by
the compiler, its flags, and the preprocessed source, which has all headers and macros. Builds for
several versions of Python so share the objects of C code that does not include `Python.h`. Any
command but one that compiles one file to one object is passed on. The folder may be deleted.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OBJECTS = Path(__file__).resolve().parents[1] / "build" / "objects"
#: What these flags do is in the preprocessed source; their value may follow behind a space.
PREPROCESSOR = ("-I", "-D", "-U")
#: What does not change how a preprocessed source is compiled. Warnings are seen when it is.
WITHOUT_EFFECT = re.compile(r"-[IDU]|-W(?!error|[alp],)")


def split(arguments):
    """Return the flags of a command that compiles one file, this file and its object, or None."""
    flags, files, made = [], [], []
    rest = iter(arguments)
    for argument in rest:
        if argument == "-o":
            made.append(next(rest, None))
        elif argument in PREPROCESSOR:
            flags.append(argument + next(rest, ""))
        else:
            (flags if argument.startswith("-") else files).append(argument)
    one = len(files) == len(made) == flags.count("-c") == 1 and files[0].endswith(".c")
    return (flags, files[0], made[0]) if one else None


def key(compiler, flags, source):
    """Return the name of an object: a hash of all that it depends on; None if there is an error."""
    found = Path(shutil.which(compiler) or compiler).resolve()
    preprocess = [compiler, *(flag for flag in flags if flag != "-c"), "-E", source]
    preprocessed = subprocess.run(preprocess, capture_output=True)
    if preprocessed.returncode or not found.is_file():
        return None
    depends = [found, found.stat().st_size, found.stat().st_mtime_ns]
    depends += [flag for flag in flags if not WITHOUT_EFFECT.match(flag)]
    return hashlib.sha256(repr(depends).encode() + preprocessed.stdout).hexdigest()


def main(compiler, arguments):
    """Compile, or copy what was compiled before; return the exit code."""
    command = split(arguments)
    name = command and key(compiler, *command[:2])
    if not name:
        return subprocess.run([compiler, *arguments]).returncode
    flags, source, made = command
    kept = OBJECTS / f"{name}.o"
    if not kept.exists():
        OBJECTS.mkdir(parents=True, exist_ok=True)
        new = f"{kept}.{os.getpid()}"
        code = subprocess.run([compiler, *flags, source, "-o", new]).returncode
        if code:
            return code
        os.replace(new, str(kept))  # at once, for builds at the same time
    shutil.copyfile(str(kept), made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
