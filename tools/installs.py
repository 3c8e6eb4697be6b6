"""Install the package as users do, on each Python from 3.8 to 3.11 on this machine, and use it.

Each way of installing that docs/install.md names has a new environment, in which pip chooses the
newest build tools and dependencies that the metadata allow. In another folder than the clone, the
environment runs `smoke.py` and the programs of README and docs/install.md. Then one test in ten
runs there, with the dependencies of requirements.txt, except on the Python that runs this program,
because `make test` runs all tests on it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wheels import FIND, ROOT, VERSIONS, build_source, create_environment, interpreter, run

#: How many environments are made at the same time.
LANES = 2
#: One test in so many runs.
PART = 10
OWN = ".".join(map(str, sys.version_info[:2]))
PAGES = ("README.md", "docs/install.md")


def clone_to(folder):
    """Copy the files that git tracks, as a new clone has them."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def from_clone(python, clone):
    """With all extras."""
    return [f"{clone}[dev]"]


def editable(python, clone):
    """In place."""
    return ["-e", clone]


def from_source(python, clone):
    """From the source distribution."""
    return [build_source(python, clone / "dist")]


def from_wheel(python, clone):
    """From the wheel that the documented command builds."""
    version = run(python, "-c", FIND).strip()
    run("make", "wheels", f"PYTHON={python}", f"VERSIONS={version}", cwd=clone)
    return list((clone / "dist").glob("*.whl"))


#: What pip installs, by the words for messages.
WAYS = {
    "pip install '.[dev]'": from_clone,
    "pip install -e .": editable,
    "the source distribution": from_source,
    "the wheel of `make wheels`": from_wheel,
}


def programs(page):
    """Return the Python code of a page as one program."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def check(version, way):
    """Install in one way on one version of Python, and use the package; return what was done."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        clone, elsewhere = Path(name, "clone"), Path(name, "elsewhere")
        elsewhere.mkdir()
        clone_to(clone)
        python, install = create_environment(interpreter(version), Path(name, "env"))
        run(*install, *WAYS[way](python, clone))
        printed = run(python, clone / "tools" / "smoke.py", cwd=elsewhere)
        native = Path(printed.splitlines()[-1]).parent
        for page in PAGES:
            run(python, "-c", programs(page), cwd=elsewhere)
        run(python, "-m", "compileall", "-q", clone)
        done = "works"
        if version != OWN:
            done += f"; {part_of_tests(python, install, clone, native)}"
    return f"Python {version}, {way}: {done} ({time.monotonic() - began:.0f} s)"


def part_of_tests(python, install, clone, native):
    """Run a part of the tests in a clone with the installed native code; return the last line."""
    for module in native.glob("*.so"):
        if not (clone / "gluon_dynbatch" / "native" / module.name).exists():
            shutil.copy(module, clone / "gluon_dynbatch" / "native")
    # As `make` does it.
    run(*install, "-c", clone / "requirements.txt", "setuptools", "wheel", "Cython")
    run(*install, "--no-build-isolation", "-r", clone / "requirements.txt")
    return run(python, "-m", "pytest", "-q", "--one-in", PART, cwd=clone).splitlines()[-1]


def main():
    """Check each way and each version of Python at least once; return the exit code."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    # The package is imported from where pip has installed it.
    os.environ.pop("PYTHONPATH", None)
    found = [version for version in reversed(VERSIONS) if interpreter(version)]
    for version in set(VERSIONS) - set(found):
        print(f"Python {version}: not found, so nothing runs on it", flush=True)
    ways, count = list(WAYS), max(len(found), len(WAYS))
    jobs = [(found[i % len(found)], ways[i % len(ways)]) for i in range(count)]
    with ThreadPoolExecutor(LANES) as pool:
        for line in pool.map(check, *zip(*jobs)):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
