"""Packaging of gluon_dynbatch.  `make` installs the exact versions in requirements.txt."""

import importlib.metadata
import os
import re
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
C = ROOT / "gluon_dynbatch" / "native" / "c"
INIT = (ROOT / "gluon_dynbatch" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE).group(1)

#: What the user asks of the compiler.
ASKED = os.environ.get("CFLAGS", "").split()

#: How much the kernels are optimized, unless the user says so.
LEVEL = [] if any(flag.startswith("-O") for flag in ASKED) else ["-O3"]

#: No debug information, unless the user asks for it. Python's own flags do, and with it the
#: compiler takes a third longer, and most of a module is that.
SYMBOLS = [] if any(flag.startswith("-g") for flag in ASKED) else ["-g0"]

#: Whether to build `executing` alone, which has all that is written in C: for `make sanitize-c`.
ONLY_C = "GDB_ONLY_C" in os.environ

PYTHON = ">=3.8,<3.12"
# Some versions of pip collect, and build, all dependencies before they check `python_requires`.
# On an unsupported Python there are no dependencies, so the user sees that Python is rejected.
SUPPORTED = '; python_version >= "3.8" and python_version < "3.12"'


def has_another_mxnet():
    """Return whether a distribution such as mxnet-cu112 is installed, which also has MXNet.

    Requiring mxnet would put the files of its wheel, for CPUs only, over those of the other one.
    An isolated build does not see installed packages, but it knows their folders.
    """
    paths = [sysconfig.get_paths()]
    if "posix_user" in sysconfig.get_scheme_names():
        paths.append(sysconfig.get_paths("posix_user"))
    folders = {folders[name] for folders in paths for name in ("purelib", "platlib")}
    return any(
        re.match(r"mxnet[-_.]", distribution.metadata["Name"] or "", re.IGNORECASE)
        and any(str(file) == "mxnet/__init__.py" for file in distribution.files or ())
        for distribution in importlib.metadata.distributions(path=sorted(folders))
    )


LIBRARY = [
    "greenlet>=2.0",
    "numpy>=1.19,<1.24",  # MXNet 1.9.1 uses np.bool, which NumPy 1.24 removed
] + ([] if has_another_mxnet() else ["mxnet==1.9.1"])

DRAW = [
    "graphviz>=0.8.1,<0.9",  # as MXNet 1.9.1 requires
    "matplotlib>=3.5",
]

EXAMPLES = DRAW + [
    "Cython>=0.29",  # to build gluonnlp, which does not declare it early enough
    "gluonnlp==0.10.0",
    "scipy>=1.6,<1.16",  # newer ones need a newer NumPy; pip would download several
    "tqdm>=4.60",
]

SERVE = [
    "httptools>=0.6",  # with httptools and uvloop, Uvicorn handles a request in half the time
    "prometheus_client>=0.17",
    "uvicorn>=0.33",
    "uvloop>=0.21",
]

RAY = [
    "pandas>=1.3,<2.4",  # as pyarrow, newer ones need a newer NumPy
    "pyarrow>=9,<18",
    "ray[data,serve]>=2.10",
]

DEV = [
    "hypothesis>=6.80",
    "mypy>=1.8",
    "networkx>=2.6",
    "pytest>=8.0",
    "pytest-xdist>=3.5",
    "ruff>=0.5",
]


class BuildExt(build_ext):
    """Runs Cython, which is not thread-safe, and then one C compiler per processor."""

    def build_extensions(self):
        """Build all extensions."""
        from Cython.Build import cythonize  # needed only for building

        cythonized = {built.name: built for built in cythonize(self.extensions, force=self.force)}
        for extension in self.extensions:
            extension.sources = cythonized[extension.name].sources
        self.parallel = self.parallel or True
        super().build_extensions()


#: The public addresses of the repository and of the site, which have none yet. The metadata, the
#: site and the advice in reports take them from here.
REPOSITORY, SITE = "", ""


def where_supported(requirements):
    """Restrict requirements to the versions of Python that MXNet 1.9.1 runs on."""
    return [requirement + SUPPORTED for requirement in requirements]


setup(
    name="gluon_dynbatch",
    version=VERSION,
    description="Dynamic batching for Apache MXNet Gluon: write one sample, run the minibatch",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="gluon_dynbatch authors",
    license="Apache-2.0",
    keywords="dynamic batching, MXNet, Gluon, Tree-LSTM, recursive neural networks, graph networks",
    project_urls={
        **({"Source": REPOSITORY} if REPOSITORY else {}),
        **({"Documentation": SITE} if SITE else {}),
        "Apache MXNet": "https://mxnet.apache.org",
        "Paper": "https://arxiv.org/abs/1904.07421",
    },
    packages=find_packages(include=["gluon_dynbatch", "gluon_dynbatch.*"]),
    # The package is annotated; its native code has types beside it.
    package_data={"gluon_dynbatch": ["py.typed"], "gluon_dynbatch.native": ["*.pyi"]},
    ext_modules=[
        Extension(
            "gluon_dynbatch.native.executing",
            ["gluon_dynbatch/native/executing.pyx"]
            + [str(path.relative_to(ROOT)) for path in sorted(C.glob("*.c"))],
            depends=[*map(str, C.iterdir())],
            include_dirs=["gluon_dynbatch/native"],
            # No flag may depend on the processor, or change results.
            extra_compile_args=[
                *LEVEL,
                *SYMBOLS,
                "-fno-math-errno",
                "-fno-trapping-math",
                "-fexceptions",  # the engine catches exceptions of C++ that are thrown in this code
                "-pthread",
            ],
            extra_link_args=["-pthread"],
        )
    ]
    + [
        Extension(
            f"gluon_dynbatch.native.{name}",
            [f"gluon_dynbatch/native/{name}.pyx"],
            # Cython generates conversions of structs to dictionaries even if none is used.
            extra_compile_args=["-Wno-unused-function", *SYMBOLS],
        )
        for name in (
            *("assembling", "lowering", "planning", "posting"),
            *("recency", "recording", "scheduling"),
        )
        if not ONLY_C
    ],
    cmdclass={"build_ext": BuildExt},
    entry_points={"console_scripts": ["gluon-dynbatch = gluon_dynbatch.__main__:main"]},
    python_requires=PYTHON,
    install_requires=where_supported(LIBRARY),
    extras_require={
        "draw": where_supported(DRAW),
        "examples": where_supported(EXAMPLES),
        "serve": where_supported(EXAMPLES + SERVE),
        "ray": where_supported(EXAMPLES + SERVE + RAY),
        "dev": where_supported(EXAMPLES + SERVE + DEV),
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Cython",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.8",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: Implementation :: CPython",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
