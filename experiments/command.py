"""How all programs here end: errors that the user can mend are one line, without a trace."""

from __future__ import annotations

import os
import sys
from typing import Callable, Type

import gluon_dynbatch as gdb


def run_program(run: Callable[[], None], *expected: Type[Exception]) -> int:
    """Run a program and return its exit status.

    Parameters
    ----------
    run : callable
    expected : exception types
        Errors that are the user's to mend, beside those of files and of batching options.
    """
    try:
        run()
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (*expected, gdb.BudgetError, gdb.OptionError) as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _complain(message: str) -> int:
    print("error: " + "; ".join(line.strip() for line in message.splitlines()), file=sys.stderr)
    return 2
