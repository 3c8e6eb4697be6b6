"""How many threads share a program: `native/c/team.h` says how."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, List, Optional

from ..native import executing

#: The most threads, far more than help.
MOST = 64
CGROUPS = Path("/sys/fs/cgroup")


def use_threads() -> None:
    """Let the team have as many threads as the user has set, or as the process may use processors.

    The setting is ``OMP_NUM_THREADS``, as for MXNet's own operators.  Native code counts the
    processors whenever a program runs; a container's share of them is read here.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    own = int(setting) if setting.isdigit() else 0
    executing.use_threads(own or quota() or MOST)


def quota(groups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> Optional[int]:
    """Return how many processors the control groups of the process allow; None if they do not say.

    Both versions of Linux's control groups are read: ``cpu.max``, and ``cpu.cfs_quota_us``.
    """
    shares = []
    for folder in _folders(groups, own):
        limit = _words(folder / "cpu.max")
        limit = limit or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(limit) == 2 and all(word.isdigit() for word in limit) and int(limit[1]):
            shares.append(int(limit[0]) // int(limit[1]))
    return max(min(shares), 1) if shares else None


def _folders(groups: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of the root, which a container sees, and of the process's own groups."""
    yield groups
    yield groups / "cpu"
    try:
        lines = own.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = groups / "cpu" if "cpu" in controllers.split(",") else groups
        if not controllers or "cpu" in controllers.split(","):
            folder = root / path.lstrip("/")
            yield from (parent for parent in (folder, *folder.parents) if root in parent.parents)


def _words(path: Path) -> List[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeError):
        return []
