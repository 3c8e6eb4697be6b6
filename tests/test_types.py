"""The types of native code and of MXNet, in .pyi files, are those of functions that exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NATIVE = sorted((ROOT / "gluon_dynbatch" / "native").glob("*.pyi"))
MXNET = sorted((ROOT / "stubs" / "mxnet").rglob("*.pyi"))
SOURCE = "".join(
    path.read_text("utf-8")
    for path in sorted(NATIVE[0].parent.iterdir())
    if path.suffix in (".pyx", ".pxi")
)
#: Methods of subclasses in Python, of which native code and others know the native base.
OF_SUBCLASSES = {
    *("Owner.realise", "Keeper.read", "Keeper.detached", "Keeper.wait_for"),
    *("Switches.restore", "Switches.guard", "Switches.rest_fiber", "Switches.may_resume"),
}


def definitions(body):
    """Return the nodes that define names, by name; no imports, aliases of types, or protocols."""
    found = {}
    for node in body:
        bases = node.bases if isinstance(node, ast.ClassDef) else ()
        is_protocol = any(getattr(base, "id", None) == "Protocol" for base in bases)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not is_protocol:
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
    return found


def name_of(path):
    parts = [*path.relative_to(ROOT).with_suffix("").parts]
    parts = parts[1:] if parts[0] == "stubs" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", NATIVE + MXNET, ids=name_of)
def test_stubs_define_what_exists(path):
    module = importlib.import_module(name_of(path))
    for name, node in definitions(ast.parse(path.read_text("utf-8")).body).items():
        assert hasattr(module, name), name
        for member, of in definitions(getattr(node, "body", ())).items():
            if isinstance(node, ast.ClassDef) and f"{name}.{member}" not in OF_SUBCLASSES:
                # Attributes of instances show in classes of native code, but not of Python.
                in_instances = path in MXNET and isinstance(of, ast.AnnAssign)
                assert in_instances or hasattr(getattr(module, name), member), (name, member)


@pytest.mark.parametrize("path", NATIVE, ids=name_of)
def test_stubs_of_native_code_are_complete(path):
    module = importlib.import_module(name_of(path))
    known = definitions(ast.parse(path.read_text("utf-8")).body)
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if not isinstance(value, type):
            assert name in known, name
            continue
        members = {member for member in vars(value) if not member.startswith("_")}
        if members:  # else only native code uses it
            typed = definitions(known[name].body).keys()
            assert members <= typed, f"{name}: {members - typed}"


def parameters_of(text):
    """Return the names of the parameters in a list of C or Python."""
    text = re.sub(r"\[[^\]]*\]|#.*", "", text)
    names = [part.split("=")[0].replace(" not None", "").split() for part in text.split(",")]
    return [name[-1] for name in names if name and name[-1] != "self"]


@pytest.mark.parametrize("path", NATIVE, ids=name_of)
def test_stubs_of_native_functions_have_their_parameters(path):
    for name, node in definitions(ast.parse(path.read_text("utf-8")).body).items():
        if not isinstance(node, ast.FunctionDef):
            continue
        wanted = [argument.arg for argument in node.args.args if argument.arg != "self"]
        pattern = rf"^(?:def|cpdef [^\n(]*?) ?\b{name}\(([^)]*)\)"
        given = [parameters_of(text) for text in re.findall(pattern, SOURCE, re.MULTILINE)]
        assert wanted in given, f"{name}: {given}"
