"""The command line: ``gluon-dynbatch explain script.py [arguments]``."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn, Optional

from .explain import pages


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print a message and exit."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def _count(text: str) -> Optional[int]:
    """Return a number of lines; None for all."""
    if text == "all":
        return None
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'all' nor a whole number from 1 on")
    return int(text)


def main() -> None:
    """Run the command that the command line names."""
    parser = Parser(prog="gluon-dynbatch", description=__doc__)
    version = sys.modules["gluon_dynbatch"].__version__
    parser.add_argument("--version", action="version", version=f"gluon_dynbatch {version}")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("explain", help=(pages.__doc__ or "").splitlines()[0])
    command.add_argument(
        "--lines",
        type=_count,
        default=pages.MOST_LINES,
        metavar="N",
        help="most lines of code to show of each scope, or 'all' (default: %(default)s)",
    )
    command.add_argument("script", help="a Python program that opens scopes")
    rest = command.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the script")
    rest.required = False
    options = parser.parse_args()
    problem = pages.unreadable(options.script)
    if problem:
        command.error(problem)
    pages.run_script(options.script, options.arguments, options.lines)


if __name__ == "__main__":
    main()
