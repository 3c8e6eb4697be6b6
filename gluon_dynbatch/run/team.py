"""How many threads share a program: `native/c/team.h` says how."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import List

from ..native import executing

#: The most threads, far more than help.
MOST = 64
#: Where Linux mounts control groups, which limit the time on the processor of containers.
GROUPS = Path("/sys/fs/cgroup")


def use_threads() -> None:
    """Let the team have as many threads as the user has set, or as the process may use processors.

    The setting is ``OMP_NUM_THREADS``, as for MXNet's own operators.  Native code counts the
    processors whenever a program runs; a container's share of them is read here.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    count = int(setting) if setting.isdigit() else 0
    executing.use_threads(count or max(1, int(min(quota(), MOST))))


def quota(groups: Path = GROUPS, membership: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many cores' time the control groups of this process allow; infinity for all.

    A group's limit also holds for the groups in it. Version 2 of control groups has it in
    ``cpu.max``, as quota and period; version 1 in two files of the controller ``cpu``.
    """
    limits = [math.inf]
    for line in _text(membership).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, names = groups, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            top, names = groups / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        folder = top / path.strip("/")
        # In a container, the path may be that outside of it; the mounted top is the own group.
        inside = [folder, *folder.parents]
        for each in inside[: inside.index(top) + 1]:
            limits += _limit(" ".join(_text(each / name) for name in names))
    return min(limits)


def _limit(text: str) -> List[float]:
    """Parse a quota and a period; without a limit, the quota is "max" or negative."""
    fields = text.split()
    if len(fields) != 2 or not all(map(str.isdigit, fields)):
        return []
    return [int(fields[0]) / int(fields[1])]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return ""
