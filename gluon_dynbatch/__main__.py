"""The command line: ``python -m gluon_dynbatch explain script.py [arguments]``."""

from __future__ import annotations

import argparse
import os

from . import explain

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m gluon_dynbatch", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("explain", help=(explain.__doc__ or "").splitlines()[0])
    verb.add_argument("script", help="a Python program that opens scopes")
    verb.add_argument("arguments", nargs=argparse.REMAINDER, help="given to the script")
    given = parser.parse_args()
    if not os.path.exists(given.script):
        parser.error(f"there is no file {given.script!r}")
    explain.main(given.script, given.arguments)
