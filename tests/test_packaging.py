"""What pip is told: on which versions of Python the package can be installed, and what it needs."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
SUPPORTED = ("3.8", "3.9", "3.10", "3.11")
OTHERS = ("3.6", "3.7", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metadata")
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return importlib.metadata.PathDistribution(next(folder.glob("*.egg-info")))


@pytest.mark.parametrize("version", SUPPORTED + OTHERS)
def test_dependencies_are_those_of_a_supported_python(metadata, version):
    """Elsewhere none: pip may build them before it looks at which Python is required."""
    supported = version in SUPPORTED
    assert SpecifierSet(metadata.metadata["Requires-Python"]).contains(version) == supported
    for extra in ("", "examples", "dev"):
        environment = {"python_version": version, "extra": extra}
        names = {
            requirement.name
            for requirement in map(Requirement, metadata.requires)
            if requirement.marker is None or requirement.marker.evaluate(environment)
        }
        assert ({"mxnet", "numpy"} <= names) == supported
        assert bool(names) == supported


def other_python(version):
    """Find an interpreter that has pip; None if there is none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (shutil.which(f"python{version}"), *installed):
        if python is not None:
            ran = subprocess.run([python, "-m", "pip", "--version"], capture_output=True)
            if ran.returncode == 0:
                return python
    return None


@pytest.mark.parametrize("version", ["3.12"])
def test_pip_refuses_another_python_by_a_sentence(tmp_path, version):
    """Asked in a way that needs no network: without an index, with the setuptools that is here."""
    python = other_python(version)
    if python is None:
        pytest.skip(f"no Python {version} with pip on this machine")
    command = [python, "-m", "pip", "install", "--no-index", "--no-build-isolation"]
    ran = subprocess.run(
        [*command, "--target", str(tmp_path), str(ROOT)],
        env={**os.environ, "PYTHONPATH": str(Path(setuptools.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert ran.returncode
    assert "requires a different Python" in ran.stderr, ran.stdout + ran.stderr
    assert not list(tmp_path.iterdir())
