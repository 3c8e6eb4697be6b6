"""Metadata, supported versions of Python, and a wheel that works in another environment."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.conftest import pytest_collection_modifyitems

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
    for extra in ("", "draw", "examples", "serve", "ray", "dev"):
        environment = {"python_version": version, "extra": extra}
        names = {
            requirement.name
            for requirement in map(Requirement, metadata.requires)
            if requirement.marker is None or requirement.marker.evaluate(environment)
        }
        assert ({"mxnet", "numpy"} <= names) == supported
        assert bool(names) == supported


def test_the_wheel_for_cpus_is_not_put_over_another_mxnet(tmp_path):
    """It is required unless a distribution of another name has the module."""
    venv.create(tmp_path / "env", symlinks=True)
    site = next((tmp_path / "env").glob("lib/*/site-packages"))
    tools = str(Path(setuptools.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": tools, "PYTHONUSERBASE": str(tmp_path / "user")}

    def installed(name, folder, *files):
        info = folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        return info

    def requires_mxnet():
        build = ["setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
        python = str(tmp_path / "env" / "bin" / "python")
        subprocess.run([python, *build], cwd=ROOT, env=env, check=True)
        found = importlib.metadata.PathDistribution(next(tmp_path.glob("*.egg-info")))
        return "mxnet" in {Requirement(text).name for text in found.requires}

    assert requires_mxnet()
    installed("mxnet", site, "mxnet/__init__.py")
    installed("mxnet-tools", site, "mxnet_tools.py")
    assert requires_mxnet()
    with_cuda = installed("mxnet-cu112", site, "mxnet/__init__.py", "mxnet/libmxnet.so")
    assert not requires_mxnet()
    shutil.rmtree(with_cuda)
    assert requires_mxnet()
    scheme = {"userbase": str(tmp_path / "user")}
    user = Path(sysconfig.get_path("purelib", "posix_user", scheme))
    installed("mxnet-cu112", user, "mxnet/__init__.py")
    assert not requires_mxnet()


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
    check_that_mypy_sees_the_types(python, tmp_path)


TYPED = """\
from typing import List

import gluon_dynbatch as gdb
from gluon_dynbatch.native import recording


def length(sample: str) -> int:
    return len(sample)


with gdb.batching(max_rows=64) as batch:
    lengths: List[int] = batch.map(length, ["one", "two"])
launches: int = batch.report.launches
{wrong}
"""
WRONG = {
    "gdb.batching(max_rows='many')": "arg-type",
    "names: List[str] = gdb.map(length, ['one'])": "arg-type",
    "batch.report.nods": "attr-defined",
    "gdb.batch()": "attr-defined",
    "recording.without_collector()": "call-arg",
}


def check_that_mypy_sees_the_types(python, folder):
    """Users run mypy on their programs; MXNet itself has no types."""
    program = folder / "typed.py"
    program.write_text(TYPED.format(wrong="\n".join(WRONG)))
    recipe = ROOT / "examples" / "recipes" / "hierarchy.py"
    command = [sys.executable, "-m", "mypy", "--config-file=", "--python-executable", python]
    options = ["--ignore-missing-imports", "--check-untyped-defs", "--no-error-summary"]
    process = subprocess.run(
        [*command, *options, "--cache-dir", str(folder / "types"), str(program), str(recipe)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    first = TYPED.splitlines().index("{wrong}") + 1
    found = re.findall(r"^typed.py:(\d+): error: .*\[([\w-]+)\]$", process.stdout, re.M)
    expected = [(str(first + i), code) for i, code in enumerate(WRONG.values())]
    assert found == expected, process.stdout + process.stderr
    assert process.stdout.count("error:") == len(WRONG), process.stdout


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


def test_one_test_in_ten_is_selected_by_name():
    """The others are reported as deselected."""
    names = [f"tests/test_{i}.py::test_{j}" for i in range(20) for j in range(50)]

    def selected(names, count):
        items, left_out = [SimpleNamespace(nodeid=name) for name in names], []
        hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
        config = SimpleNamespace(getoption={"--one-in": count}.get, hook=hook)
        pytest_collection_modifyitems(config, items)
        assert len(items) + len(left_out) == len(names)
        return {item.nodeid for item in items}

    part = selected(names, 10)
    assert 50 < len(part) < 150 and part == selected(names[::-1], 10)
    assert selected(names, 1) == set(names)


VERSION = ".".join(map(str, sys.version_info[:2]))


def copy_without_native_code(folder):
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    return shutil.copytree(ROOT / "gluon_dynbatch", folder / "gluon_dynbatch", ignore=ignore)


def test_in_a_clone_that_is_not_compiled_the_import_names_the_installed_package(tmp_path):
    """Python finds the folder of the clone first."""
    clone, installed = tmp_path / "clone", tmp_path / "installed"
    copy_without_native_code(clone)
    (clone / "setup.py").touch()
    installed.mkdir()
    (installed / "gluon_dynbatch").symlink_to(ROOT / "gluon_dynbatch")
    command = [sys.executable, "-W", "ignore", "-c", "import gluon_dynbatch"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    process = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True)
    assert process.stderr.splitlines()[-1] == (
        f"ImportError: the native code of gluon_dynbatch is not compiled for this Python "
        f"({VERSION}), which imports it from the clone in {clone}; to use the package that is "
        f"installed in {installed}, start Python in another folder; to compile the clone, run "
        f"`pip install -e .` in {clone}"
    )
    subprocess.run(command, cwd=tmp_path, env=env, check=True)


def error_of_importing(native):
    """Import a copy of `gluon_dynbatch.native` by another name, and return the error."""
    name = "native_in_another_folder"
    spec = importlib.util.spec_from_file_location(name, native / "__init__.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with pytest.raises(ImportError) as caught:
            spec.loader.exec_module(sys.modules[name])
    finally:
        del sys.modules[name]
    return str(caught.value)


def test_native_code_that_is_missing_or_does_not_load_is_reported_with_what_to_do(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    native = copy_without_native_code(tmp_path) / "native"
    missing = f"the native code of gluon_dynbatch is not compiled for this Python ({VERSION}), "
    assert error_of_importing(native) == (
        f"{missing}which imports it from the package in {tmp_path}; install the package again"
    )
    (tmp_path / "setup.py").touch()
    message = error_of_importing(native)
    assert message.startswith(f"{missing}which imports it from the clone in {tmp_path}; to compile")
    assert "`pip install -e .`" in message and "`pip install .`" in message
    for module in (ROOT / "gluon_dynbatch" / "native").glob("*.pyx"):
        (native / f"{module.stem}.so").touch()
    message = error_of_importing(native)
    assert message.startswith(f"the native code of the clone in {tmp_path} does not load (")
    assert "assembling.so: " in message
    assert message.endswith(f"; run `pip install -e .` in {tmp_path}")
