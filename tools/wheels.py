"""Build the source distribution, and a wheel for each Python from 3.8 to 3.11 on this machine.

Each wheel is installed with its dependencies into a new environment, and `smoke.py` runs there.
Versions that are not found are reported and get no wheel; it is an error if none is found. The
wheels need this machine's C library or a newer one. For wheels that run on any Linux, see
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
    """Run a command; if it fails, print its output and exit."""
    result = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if result.returncode:
        sys.exit(f"{result.stdout.decode()}\nerror: {' '.join(map(str, command))} failed")


def create_environment(python, folder):
    """Create an environment; return its Python, and the command that installs into it."""
    run(python, "-m", "venv", folder)
    python = Path(folder) / "bin" / "python"
    return python, [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def main():
    """Build and test a wheel for each version found; return the exit code."""
    pythons = {version: interpreter(version) for version in VERSIONS}
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    wheels = []
    for version, python in pythons.items():
        if python is None:
            print(f"Python {version}: not found, so there is no wheel for it", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            builder, install = create_environment(python, f"{folder}/build")
            run(*install, "-c", ROOT / "requirements.txt", "setuptools", "wheel", "Cython")
            if not wheels:
                egg = ("egg_info", "--egg-base", folder)
                run(builder, "setup.py", "--quiet", *egg, "sdist", "--dist-dir", dist, cwd=ROOT)
            source = next(dist.glob("*.tar.gz"))
            build = [builder, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", source]
            run(*build, "--wheel-dir", f"{folder}/wheel")
            (wheel,) = Path(folder, "wheel").glob("*.whl")
            wheels.append(shutil.copy(str(wheel), str(dist)))
            tester, install = create_environment(python, f"{folder}/try")
            run(*install, wheel)
            run(tester, ROOT / "tools" / "smoke.py", cwd=folder)
        print(f"Python {version}: dist/{wheel.name} works", flush=True)
    if not wheels:
        print(f"error: none of Python {', '.join(VERSIONS)} is on this machine", file=sys.stderr)
    return not wheels


if __name__ == "__main__":
    sys.exit(main())
