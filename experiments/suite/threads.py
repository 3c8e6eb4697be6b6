"""Speed over threads: ways of a workload with 1, 2, ... threads, and with none set.

Each way at each setting is a contender in a process of its own, whose environment names the number
of threads, or none; all take turns as in any contest. The label of a contender is ``WAY@SETTING``.
"""

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from itertools import product
from time import monotonic
from typing import NamedTuple

import cores
from workloads.registry import WORKLOADS

from . import ways
from .contest import COMPARED, DiffersError, agree, contest
from .remote import PEERS, Apart, Remote
from .tables import Rows, Table

#: By default: the sizes of minibatches of each workload, the narrow ones first; and the ways, with
#: known structures, with new ones, and PyTorch.
SIZES = {"sick": (8, 256, 1024), "tagger": (4, 64)}
WAYS = (ways.ONCE, "gdb", "torch")
#: The setting of an environment that names no number of threads.
UNSET = "nothing set"
#: Runs until its parent ends.
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000): pass
"""


def label_of(way, setting):
    """Return the label of a contender."""
    return f"{way}@{setting}"


def split(label):
    """Return way and setting of a label; the setting is a number, or `UNSET`."""
    way, setting = label.split("@")
    return way, setting if setting == UNSET else int(setting)


@contextmanager
def neighbour(busy):
    """Keep one core busy in the body with another process, which may run on any core."""
    if not busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", SPIN]) as process:
        try:
            yield
        finally:
            process.kill()


def measure(args, ends):
    """Yield the name of each workload with its measurements, until about the time `ends`."""
    limit = cores.usable()
    settings = [*(count for count in args.threads if count <= limit), UNSET]
    beyond = [f"{count} threads" for count in args.threads if count > limit]
    parts = [(name, kind, size) for name in args.workloads for kind in args.kinds
             for size in args.batch_sizes or SIZES.get(name) or WORKLOADS[name].sizes]  # fmt: skip
    for name in args.workloads:
        with ExitStack() as stack:
            roster = ways.Roster(name, args, stack)
            measured = roster.measured()
            measured.left_out.update(dict.fromkeys(beyond, f"this process may use {limit} cores"))
            contenders = _gather(roster, args, settings)
            kinds = set()
            for part in [each for each in parts if each[0] == name and contenders]:
                _, kind, size = part
                for each in contenders:  # what a way has learnt, it knows at all sizes
                    way, _, _ = ways.parse(split(each.label)[0])
                    each.learns = kind not in kinds and way == ways.ONCE
                kinds.add(kind)
                share = (ends - monotonic()) / (len(parts) - parts.index(part))
                fresh = roster.workload.minibatches(size, args.seed)
                with neighbour(args.busy):
                    measured.rows += contest(contenders, fresh, kind, size, args.rounds,
                                             args.seconds, args.seed, share)  # fmt: skip
            yield name, measured


def _gather(roster, args, settings):
    """Start all processes at once; return the contenders that agree with the loop."""
    started, name = [], roster.workload.name
    for way, setting in product(args.ways, settings):
        label, threads = label_of(way, setting), None if setting == UNSET else setting
        bare = ways.bare(way)
        if bare in PEERS and name not in PEERS[bare]:
            continue
        kind = Remote if bare in PEERS else Apart
        try:
            each = kind(bare, roster.workload, args, label, threads, by_length=bare != way)
        except DiffersError as error:
            roster.left_out[way] = str(error)
            continue
        roster.stack.callback(each.close)
        started.append(each)
    new = []
    for each in started:
        way, _ = split(each.label)
        try:
            greeting = each.greet()
            new.append(each)
            if ways.bare(way) in PEERS:
                roster.versions[way] = greeting["version"]
        except DiffersError as error:
            roster.left_out[way] = str(error)
    agreeing, differing = agree(new, roster.make("imperative"), COMPARED)
    roster.left_out.update(differing)
    return agreeing


class Curve(NamedTuple):
    """The turns of one way with all numbers of threads and with none set."""

    way: str
    rows: Rows  # of one kind and size
    settings: list  # in order
    best: object  # the number of threads that is fastest

    def spread(self, setting):
        """Return median and quartiles of the rate."""
        return self.rows.spread(label_of(self.way, setting))

    def ratio(self, setting, other, others_setting):
        """Return the median over rounds of the speed relative to another curve's."""
        labels = label_of(self.way, setting), label_of(other.way, others_setting)
        return self.rows.ratio(*labels)


def curves(rows):
    """Make the curves of the rows of one kind and size, and those of rounds that chose no best.

    Every other round chooses the best number of threads, and the remaining rounds give ratios, so
    that a number with a lucky round has no advantage.
    """
    halves = [Rows(row for row in rows if row.round % 2 == side) for side in (0, 1)]
    choosing, judging = halves if halves[1] else (rows, rows)
    settings = {}
    for label in rows.by("way"):
        way, setting = split(label)
        settings.setdefault(way, []).append(setting)
    best = {
        way: max((s for s in listed if s != UNSET or len(listed) == 1),
                 key=lambda s, way=way: choosing.median(label_of(way, s)))
        for way, listed in settings.items()
    }  # fmt: skip
    return [[Curve(way, some, settings[way], best[way]) for way in settings]
            for some in (rows, judging)]  # fmt: skip


def table(measured):
    """Tabulate rates by setting, the best of each way marked, with ratios to the best ones."""
    settings = list(dict.fromkeys(split(label)[1] for label in measured.rows.by("way")))
    peers = [way for way in dict.fromkeys(split(label)[0] for label in measured.rows.by("way"))
             if ways.bare(way) in PEERS]  # fmt: skip
    columns = {"kind": "s", "batch": "d", "way": "s", **{str(each): ">s" for each in settings}}
    columns[f"{UNSET} / best"] = ".2f"
    for peer in peers:
        columns.update({f"{UNSET} / {peer}'s best": ".2f", f"best / {peer}'s best": ".2f"})
    cells = []
    for (kind, size), rows in measured.rows.by("kind", "size").items():
        whole, judging = curves(rows)
        by_way = {curve.way: curve for curve in judging}
        for curve, judge in zip(whole, judging):
            rates = [_marked(curve, setting) for setting in settings]
            ratios = [judge.ratio(UNSET, judge, judge.best)]
            for peer in peers:
                other = by_way.get(peer, judge)
                for setting in (UNSET, judge.best):
                    alike = other is judge
                    ratios.append(None if alike else judge.ratio(setting, other, other.best))
            cells.append((kind, size, curve.way, *rates, *ratios))
    return Table(f"{measured.unit} per second, by threads", columns, cells)


def _marked(curve, setting):
    """Format a rate, bold for the best number of threads."""
    if setting not in curve.settings:
        return None
    mark = "**" if setting == curve.best else ""
    return f"{mark}{curve.spread(setting)[0]:,.0f}{mark}"
