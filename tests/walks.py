"""Which modules of the package a piece of work enters."""

import gc
import sys
from pathlib import Path

import gluon_dynbatch as gdb

ROOT = Path(gdb.__file__).parent


def walk(work):
    """Return the result of `work`, and the modules it enters, in the order of their first call."""
    entered, before = {}, sys.getprofile()

    def note(frame, event, called):
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if ROOT in path.parents:
                entered[path.relative_to(ROOT).with_suffix("").as_posix()] = True
        elif event == "c_call":
            owner = called if getattr(called, "__module__", None) else type(called.__self__)
            if owner.__module__.startswith("gluon_dynbatch.native."):
                entered[owner.__module__[len("gluon_dynbatch.") :].replace(".", "/")] = True

    gc.disable()  # callbacks of weak references are not part of the walk
    sys.setprofile(note)
    try:
        result = work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return result, [*entered]
