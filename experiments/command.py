"""Command lines of all programs: a mistake of the user gives a one-line error, no traceback."""

import argparse
import math
import os
import sys
import threading
from pathlib import Path

import gluon_dynbatch as gdb
from gluon_dynbatch.options import Options


class UsageError(Exception):
    """A mistake that the user can correct: contradictory options, unusable data."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the long usage text."""

    def parse_args(self, args=None, namespace=None):
        """Read the command line; a variable that sets an option wrongly is a mistake, too."""
        options = super().parse_args(args, namespace)
        try:
            Options.of_environment()
        except gdb.BudgetError as error:
            self.error(str(error).splitlines()[0])
        return options

    def parse_known_args(self, args=None, namespace=None):
        """Refuse what is unknown here, so that the message names the help of a subcommand."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message):  # noqa: D102
        self.exit(2, f"error: {message} (for all options: {self.prog} --help)\n")


def between(number, least, most=math.inf, excluded=None):
    """Make an argparse type for finite numbers from `least` to `most`, except `excluded`."""

    def parse(text):
        value = number(text)
        if number is float and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number")
        for bound, holds, beside in (
            (least, value >= least, "greater than"), (most, value <= most, "less than"),
        ):  # fmt: skip
            if not holds or value == bound == excluded:
                at = "at least" if bound == least else "at most"
                limit = f"{beside if bound == excluded else at} {bound}"
                raise argparse.ArgumentTypeError(f"{text} is not {limit}")
        return value

    parse.__name__ = number.__name__
    return parse


#: Counts that only take time, or cut what there is; and sizes of arrays, which must fit in memory.
POSITIVE, SIZE = between(int, 1), between(int, 1, 10_000)
ABOVE_ZERO, FRACTION = between(float, 0, excluded=0), between(float, 0, 1, excluded=1)
#: Seeds that all generators accept.
SEED = between(int, 0, 2**31 - 1)
#: Seconds that Python can wait for.
SECONDS = between(float, 0, threading.TIMEOUT_MAX)


def path(text):
    """Make a path; an empty one would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not a path")
    return Path(text)


path.__name__ = "Path"


def budget(text):
    """Check an analysis budget as `gluon_dynbatch.batching` takes it."""
    try:
        gdb.batching(text)
    except gdb.BudgetError:
        wanted = 'milliseconds, "none" or "auto"'
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
    return text


def add_options(parser, *rows, **defaults):
    """Add options; `defaults` replace those of the rows, by the names of options in a namespace.

    Each row has the option's name, its type (a tuple of choices; None for a flag), its default, the
    name of its value, and a help text, to which the default is added.
    """
    for name, kind, default, metavar, text in rows:
        default = defaults.get(name[2:].replace("-", "_"), default)
        if kind is None:
            parser.add_argument(name, action="store_const", const=True, default=default, help=text)
            continue
        if isinstance(default, (str, int, float, Path)):
            text = f"{text} (default {default})"
        checked = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        if kind is Path:
            checked = {"type": path}
        parser.add_argument(name, default=default, metavar=metavar, help=text, **checked)


def listed(kind, allowed=()):
    """Make an argparse type for comma-separated values; repetitions are dropped."""

    def parse(text):
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise argparse.ArgumentTypeError(f"{text!r} has an empty part")
        values = list(dict.fromkeys(map(kind, parts)))
        unknown = [value for value in values if allowed and value not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(allowed)}")
        return values

    parse.__name__ = "comma-separated list"
    return parse


def run_program(run):
    """Run a program and return its exit status; mistakes and file errors are one line."""
    try:
        run()
    except BrokenPipeError:  # for example, the output goes into `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (UsageError, gdb.BudgetError, gdb.OptionError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(message):
    print("error: " + "; ".join(line.strip() for line in message.splitlines()), file=sys.stderr)
    return 2
