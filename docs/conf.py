"""Sphinx configuration of the site, which ``make docs`` builds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import gluon_dynbatch  # noqa: E402

project = "gluon_dynbatch"
author = "gluon_dynbatch authors"
copyright = author
version = release = gluon_dynbatch.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "requirements.txt"]
nitpicky = True
# The build does not download the indexes of these projects.
nitpick_ignore_regex = [
    ("py:.*", r"(mxnet|mx|gluon|numpy|np|concurrent|collections|typing)\..*"),
    ("py:class", r"gluon_dynbatch\.\w+\.(Result|Sample|Stream)"),  # type variables
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

#: The address of the repository; empty if it has none yet.
REPOSITORY = re.search(
    r'^REPOSITORY, SITE = "(.*)", ".*"$', (ROOT / "setup.py").read_text(encoding="utf-8"), re.M
)[1]

html_theme = "furo"
html_theme_options = {
    "source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/",
} if REPOSITORY else {}  # fmt: skip
html_title = f"gluon_dynbatch {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(DOCS / "search.js")

#: Pages whose text is in a file outside this folder.
OUTSIDE = {
    "changelog": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
    "experiments": ROOT / "experiments" / "README.md",
}
PAGES = {path: f"{name}.md" for name, path in OUTSIDE.items()}
PAGES[ROOT / "README.md"] = "index.md"
RECIPE = re.compile(r"```{recipe} (\w+)\n```")
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(\))")


def examples():
    """Yield a section for each program in `examples/`."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        yield f"\n## {path.stem}\n\n{text}\n\n"
        yield f"```{{literalinclude}} ../examples/{path.name}\n:language: python\n```\n"


def recipe(match):
    """Return a program in `examples/recipes`, and what it prints now."""
    folder, program = ROOT / "examples" / "recipes", f"{match[1]}.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, program], cwd=folder, env=environment,
                         check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    shown = f"```{{literalinclude}} ../../examples/recipes/{program}\n:language: python\n```\n"
    printed = run.stdout.replace(f"{folder}{os.sep}", "")
    return f"{shown}\nIt prints:\n\n```text\n{printed}```"


def read_source(app, name, source):
    """Load the pages of `OUTSIDE`, and rewrite links to such files as links to their pages."""
    if name == "examples":
        source[0] += "".join(examples())
    page = Path(app.env.doc2path(name))
    path = OUTSIDE.get(name, page)
    if path != page:
        source[0] = path.read_text(encoding="utf-8")
        app.env.note_dependency(str(path))

    def rewrite(match):
        target = (path.parent / match[2]).resolve()
        if target in PAGES:
            anchor = "" if PAGES[target] == "index.md" else match[3] or ""
            target, folder = (DOCS / PAGES[target]), page.parent
            return f"{match[1]}{os.path.relpath(target, folder)}{anchor}{match[4]}"
        if target.is_dir():  # a folder has no page and cannot be downloaded
            return f"{match[1]}{os.path.relpath(DOCS / 'index.md', page.parent)}{match[4]}"
        return f"{match[1]}{os.path.relpath(target, page.parent)}{match[3] or ''}{match[4]}"

    source[0] = RECIPE.sub(
        recipe,
        source[0].replace("{version}", version).replace("{repository}", REPOSITORY or "none yet"),
    )
    if page.suffix == ".md":
        source[0] = LINK.sub(rewrite, source[0])


#: Classes that users get, but do not make.
GIVEN = (
    "Batch", "BatcherStats", "Finding", "FlushReport", "Plan", "Report", "RequestStream", "Where",
)  # fmt: skip


def hide_constructor(app, what, name, obj, options, signature, returns):
    """Show no arguments of classes and exceptions that users do not construct."""
    if what == "exception" or (what == "class" and name.split(".")[-1] in GIVEN):
        return "", None
    return signature, returns


def setup(app):
    """Register the handlers with Sphinx."""
    app.connect("source-read", read_source)
    app.connect("autodoc-process-signature", hide_constructor)
