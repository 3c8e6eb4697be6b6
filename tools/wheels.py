"""Build the source distribution, and a wheel for each Python from 3.8 to 3.11 on this machine.

Each wheel is installed with its dependencies into an environment of its own, and `smoke.py` runs
there.  A version that is not found gets no wheel and is named; it is an error if none is found.
The wheels need this machine's C library or a newer one.  For wheels that run on any Linux, see
docs/install.md.
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
    """Return the path of a Python of this version, from the path, pyenv or uv, or None."""
    found = [shutil.which(f"python{version}"), shutil.which("python3"), sys.executable]
    found += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found += sorted(Path.home().glob(f".local/share/uv/python/cpython-{version}.*/bin/python3"))
    for python in found:
        if python is not None:
            told = subprocess.run([str(python), "-c", FIND], capture_output=True, text=True)
            if told.stdout.strip() == version:
                return str(python)
    return None


def run(*command, **options):
    """Run a command; if it fails, print its output and exit."""
    ran = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if ran.returncode:
        sys.exit(f"{ran.stdout.decode()}\nerror: {' '.join(map(str, command))} failed")


def pip_of(python, folder):
    """Make an environment; return its Python, and the command that installs into it."""
    run(python, "-m", "venv", folder)
    own = Path(folder) / "bin" / "python"
    return own, [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def main():
    """Build and try a wheel for each version found; return the exit code."""
    pythons = {version: interpreter(version) for version in VERSIONS}
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    made = []
    for version, python in pythons.items():
        if python is None:
            print(f"Python {version}: not found, so there is no wheel for it", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            own, install = pip_of(python, f"{folder}/build")
            run(*install, "-c", ROOT / "requirements.txt", "setuptools", "wheel", "Cython")
            if not made:
                egg = ("egg_info", "--egg-base", folder)
                run(own, "setup.py", "--quiet", *egg, "sdist", "--dist-dir", dist, cwd=ROOT)
            source = next(dist.glob("*.tar.gz"))
            wheel = [own, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", source]
            run(*wheel, "--wheel-dir", f"{folder}/wheel")
            (built,) = Path(folder, "wheel").glob("*.whl")
            made.append(shutil.copy(str(built), str(dist)))
            own, install = pip_of(python, f"{folder}/try")
            run(*install, built)
            run(own, ROOT / "tools" / "smoke.py", cwd=folder)
        print(f"Python {version}: dist/{built.name} works", flush=True)
    if not made:
        print(f"error: none of Python {', '.join(VERSIONS)} is on this machine", file=sys.stderr)
    return not made


if __name__ == "__main__":
    sys.exit(main())
