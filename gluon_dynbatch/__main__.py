"""The command line: ``python -m gluon_dynbatch explain script.py [arguments]``."""

from __future__ import annotations

import argparse
import os

from . import explain

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m gluon_dynbatch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("explain", help=(explain.__doc__ or "").splitlines()[0])
    command.add_argument("script", help="a Python program that opens scopes")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()
    if not os.path.exists(options.script):
        parser.error(f"there is no file {options.script!r}")
    explain.main(options.script, options.arguments)
