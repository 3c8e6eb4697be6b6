"""Build the source distribution, and a wheel for each Python from 3.8 to 3.11 on this machine.

``python tools/wheels.py 3.10 3.11`` builds those of some versions only.  Each wheel is installed
with its dependencies into a new environment, and `smoke.py` runs there.  Versions that are not
found are reported and get no wheel; it is an error if none is found.  The wheels need this
machine's C library or a newer one.  For wheels that run on any Linux, see docs/install.md.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.8", "3.9", "3.10", "3.11")
FIND = "import sys; print('%d.%d' % sys.version_info[:2])"


def interpreter(version):
    """Find a Python of this version on the path, in pyenv or in uv; return its path or None."""
    candidates = [shutil.which(f"python{version}"), shutil.which("python3"), sys.executable]
    candidates += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    uv = f".local/share/uv/python/cpython-{version}.*/bin/python3"
    for python in filter(None, candidates + sorted(Path.home().glob(uv))):
        result = subprocess.run([str(python), "-c", FIND], capture_output=True, text=True)
        if result.stdout.strip() == version:
            return str(python)
    return None


def run(*command, **options):
    """Run a command and return its output; if it fails, print the output and exit."""
    result = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if result.returncode:
        sys.exit(f"{result.stdout.decode()}\nerror: {' '.join(map(str, command))} failed")
    return result.stdout.decode()


def create_environment(python, folder):
    """Create an environment; return its Python, and the command that installs into it."""
    run(python, "-m", "venv", folder)
    python = Path(folder) / "bin" / "python"
    return python, [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def build_source(python, folder):
    """Build the source distribution with the setuptools of a new environment; return its path."""
    with tempfile.TemporaryDirectory() as egg:
        command = ("setup.py", "--quiet", "egg_info", "--egg-base", egg, "sdist", "--dist-dir")
        run(python, *command, folder, cwd=ROOT)
    return next(Path(folder).glob("*.tar.gz"))


def build_wheel(python, source, folder):
    """Build a wheel of the source distribution as pip does, with its own build tools."""
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as built:
        run(*pip, "wheel", "--no-deps", source, "--wheel-dir", built)
        (wheel,) = Path(built).glob("*.whl")
        return Path(shutil.copy(str(wheel), str(folder)))


def main(versions):
    """Build and test a wheel for each of these versions that is found; return the exit code."""
    dist, source = ROOT / "dist", None
    unknown = set(versions) - set(VERSIONS)
    if unknown:
        print(f"error: MXNet 1.9.1 does not run on Python {', '.join(unknown)}", file=sys.stderr)
        return 2
    shutil.rmtree(dist, ignore_errors=True)
    for version in versions:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not found, so there is no wheel for it", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            python, install = create_environment(python, f"{folder}/env")
            source = source or build_source(python, dist)
            wheel = build_wheel(python, source, dist)
            run(*install, wheel)
            run(python, ROOT / "tools" / "smoke.py", cwd=folder)
        print(f"Python {version}: dist/{wheel.name} works", flush=True)
    if source is None:
        print(f"error: none of Python {', '.join(versions)} is on this machine", file=sys.stderr)
    return source is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or VERSIONS))
