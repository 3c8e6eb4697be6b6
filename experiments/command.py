"""What the command lines of all programs share; a mistake of the user is one line, no trace."""

import argparse
import math
import os
import sys
from pathlib import Path

import gluon_dynbatch as gdb


class UsageError(Exception):
    """What is the user's to mend: options that do not go together, data that cannot be used."""


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake by one line; the usage of all options would bury it."""

    def error(self, message):  # noqa: D102
        self.exit(2, f"error: {message} (for all options: {self.prog} --help)\n")


def at_least(kind, least, exclusive=False):
    """Make an argparse type for numbers not below `least` (or only above it)."""

    def parse(text):
        value = kind(text)
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number")
        if not (value > least if exclusive else value >= least):
            sign = "greater than" if exclusive else "at least"
            raise argparse.ArgumentTypeError(f"{text} is not {sign} {least}")
        return value

    parse.__name__ = kind.__name__
    return parse


POSITIVE = at_least(int, 1)


def add_options(parser, *rows, **defaults):
    """Add options; a default in `defaults`, by the option's name in a namespace, goes before.

    Each row has an option's name, its type, choices in a tuple, or None for a flag, its default,
    how its value is called, and a help text, which is told the default.
    """
    for name, kind, default, metavar, text in rows:
        default = defaults.get(name[2:].replace("-", "_"), default)
        if kind is None:
            parser.add_argument(name, action="store_const", const=True, default=default, help=text)
            continue
        if isinstance(default, (str, int, float, Path)):
            text = f"{text} (default {default})"
        checked = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        parser.add_argument(name, default=default, metavar=metavar, help=text, **checked)


def listed(kind, allowed=()):
    """Make an argparse type for values with commas between, each once."""

    def parse(text):
        found = list(dict.fromkeys(kind(part.strip()) for part in text.split(",")))
        unknown = [part for part in found if allowed and part not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(allowed)}")
        return found

    parse.__name__ = "list with commas between"
    return parse


def run_program(run):
    """Run a program and return its exit status; errors of files are the user's to mend, too."""
    try:
        run()
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (UsageError, gdb.BudgetError, gdb.OptionError) as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _complain(message):
    print("error: " + "; ".join(line.strip() for line in message.splitlines()), file=sys.stderr)
    return 2
