"""The command line: ``python -m gluon_dynbatch explain script.py [arguments]``."""

from __future__ import annotations

import argparse
import sys

from . import explain

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m gluon_dynbatch", description=__doc__)
    version = sys.modules["gluon_dynbatch"].__version__
    parser.add_argument("--version", action="version", version=f"gluon_dynbatch {version}")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("explain", help=(explain.__doc__ or "").splitlines()[0])
    command.add_argument("script", help="a Python program that opens scopes")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()
    problem = explain.unreadable(options.script)
    if problem:
        print(f"python -m gluon_dynbatch explain: error: {problem}", file=sys.stderr)
        sys.exit(2)
    explain.main(options.script, options.arguments)
