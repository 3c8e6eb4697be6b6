"""Metadata, supported versions of Python, and a wheel that works in another environment."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
SUPPORTED = ("3.8", "3.9", "3.10", "3.11")
UNSUPPORTED = ("3.6", "3.7", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metadata")
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return importlib.metadata.PathDistribution(next(folder.glob("*.egg-info")))


@pytest.mark.parametrize("version", SUPPORTED + UNSUPPORTED)
def test_only_supported_pythons_have_dependencies(metadata, version):
    """For others, pip might build dependencies before it checks the required Python."""
    supported = version in SUPPORTED
    assert SpecifierSet(metadata.metadata["Requires-Python"]).contains(version) == supported
    for extra in ("", "draw", "examples", "serve", "dev"):
        environment = {"python_version": version, "extra": extra}
        names = {
            requirement.name
            for requirement in map(Requirement, metadata.requires)
            if requirement.marker is None or requirement.marker.evaluate(environment)
        }
        assert ({"mxnet", "numpy"} <= names) == supported
        assert bool(names) == supported


def test_the_wheel_of_the_source_distribution_works_in_another_environment(tmp_path):
    """The environment sees MXNet, but not the repository."""
    # Not optimized, whatever setup.py sets: the test is that no file is missing.
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {sysconfig.get_config_var("CC")} "$@" -O0 -g0\n')
    compiler.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env.update(CC=str(compiler), PIP_DISABLE_PIP_VERSION_CHECK="1", TMPDIR=str(tmp_path))

    def run(*command, cwd=tmp_path):
        process = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
        assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
        return process.stdout

    build = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    run(*build, "sdist", "--dist-dir", str(tmp_path), cwd=ROOT)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        compiled = [name for name in archive.getnames() if name.endswith((".c", ".so"))]
        assert all("/native/c/" in name for name in compiled)
        archive.extractall(tmp_path)
    source = next(tmp_path.glob("gluon_dynbatch-*/"))
    pip, offline = [sys.executable, "-m", "pip", "--quiet"], ["--no-deps", "--no-index"]
    run(*pip, "wheel", *offline, "--no-build-isolation", str(source), "--wheel-dir", str(tmp_path))
    venv.create(tmp_path / "env", symlinks=True)
    python = str(tmp_path / "env" / "bin" / "python")
    site = next((tmp_path / "env").glob("lib/*/site-packages"))
    (site / "mxnet.pth").write_text(str(Path(setuptools.__file__).parents[1]))
    run(*pip, "--python", python, "install", *offline, str(next(tmp_path.glob("*.whl"))))
    for line in run(python, str(ROOT / "tools" / "smoke.py")).splitlines():
        assert site in Path(line).parents, line


@pytest.mark.parametrize("version", ["3.12", ""])
def test_make_says_what_to_type_where_python_is_not_supported(tmp_path, version):
    for name in ("Makefile", "requirements.txt", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    command = ["make", f"PYTHON={python}", "demo"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    message = process.stderr
    assert process.returncode and "MXNet 1.9.1 needs Python 3.8 to 3.11" in message
    assert "\n  uv python install 3.11\n  make PYTHON=$(uv python find 3.11) demo\n" in message
    assert "is 3.12." in message if version else "does not run." in message


def test_without_native_code_the_import_says_how_to_build_it(tmp_path):
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "gluon_dynbatch", tmp_path / "gluon_dynbatch", ignore=ignore)
    process = subprocess.run(
        [sys.executable, "-c", "import gluon_dynbatch"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    message = process.stderr
    assert process.returncode and "ImportError: the native code of gluon_dynbatch is not" in message
    assert "pip install ." in message and "setup.py build_ext --inplace" in message
