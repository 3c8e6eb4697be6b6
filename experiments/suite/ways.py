"""All ways of running a workload, by name.

`imperative`, `hybridized`
    Sample by sample, cells plain or hybridized.
`hand`
    Batched by hand, for workloads that have it; see `baselines`.
`gdb`
    ``gdb.batching()``, all options on auto.
`gdb-once`
    The same, and each structure of a dynamic block's arguments is traced once.
`gdb:block:depth`, `gdb:block:search:10ms`, `gdb:block:search:500`, `gdb:block:search:cached`
    With this granularity and this policy; without a limit on the analysis, with one in time or in
    visits, or with plans that are known from earlier minibatches.
`dynet`, `dynet-lstm`, `torch`, `torchfold`, `dgl`
    Other systems, in processes of their own; see `peers`.

`settings` stands for all fixed settings, `curve` for visits from none to more than enough, `peers`
for all other systems.
"""

import argparse
import re
from itertools import product

import numpy as np

import gluon_dynbatch as gdb
from gluon_dynbatch.schedule import POLICIES
from workloads.registry import make

from .contest import DiffersError, Local, agree
from .remote import PEERS, Remote
from .runner import Runner
from .tables import CACHED, LOOPS, Rows

GRANULARITIES = ("operator", "block", "graph")
#: Our own way with ``trace_once=True``.
ONCE = "gdb-once"
LOCAL = (*LOOPS, "hand", "gdb", ONCE)
#: Modes of `Runner` for workloads that are batched by hand.
BY_HAND = {"sick": "manual", "tagger": "padded"}
#: Call by call, without any analysis.
ONE_BY_ONE = "gdb:block:depth:0"
#: Whose launches are counted for one minibatch.
COUNTED = (
    "gdb",
    *(f"gdb:{each}:{policy}" for each, policy in product(GRANULARITIES[:2], POLICIES)),
)
GROUPS = {
    "settings": (
        ONE_BY_ONE,
        *(f"gdb:{each}:{policy}" for each, policy in product(GRANULARITIES, POLICIES)),
        *(f"gdb:{each}:search:10ms" for each in GRANULARITIES),
    ),
    "peers": tuple(PEERS),
}
CURVE = "curve"
#: Granularities of the curves; budgets go from this share of the nodes to this multiple of them.
CURVES, LEAST, MOST = ("operator", "block"), 1 / 8, 64
#: Granularity, policy, and limit in milliseconds or visits, as a way's name has them.
SETTING = re.compile(
    rf"gdb:({'|'.join(GRANULARITIES)}):({'|'.join(POLICIES)})(?::([0-9.]+)ms|:([0-9]+)|{CACHED})?"
)


def options_of(name):
    """Give the options of `gluon_dynbatch.batching` for one of our own ways."""
    match = SETTING.fullmatch(name)
    if match is None:  # all on auto
        return {}
    granularity, policy, ms, visits = match.groups()
    budget = gdb.Budget(visits=int(visits)) if visits else float(ms) if ms else None
    return {"granularity": granularity, "policy": policy, "analysis_budget": budget}


def read_ways(text):
    """Read names with commas between; a group becomes its members, but for `curve`."""
    found = {}
    for name in map(str.strip, text.split(",")):
        if name not in (*LOCAL, *PEERS, *GROUPS, CURVE) and not SETTING.fullmatch(name):
            every = ", ".join((*LOCAL, "gdb:GRANULARITY:POLICY[:LIMIT]", *PEERS, *GROUPS, CURVE))
            raise argparse.ArgumentTypeError(f"{name!r} is none of {every}")
        found.update(dict.fromkeys(GROUPS.get(name, (name,))))
    return list(found)


class Cast:
    """The contenders of one workload: made when they are asked for, and compared with the loop.

    `args` are options of the benchmark; `stack` ends the processes of other systems.
    """

    def __init__(self, name, args, stack):
        self.args, self.stack = args, stack
        self.workload = make(name, args, **args.sizes)
        self.made = {}
        self.left_out = {}  # why ways do not take part
        self.versions = {}  # what other systems say of themselves

    def gather(self, ways, size):
        """Give the contenders of these ways; leave out who does not compute what the loop does."""
        names = [each for way in ways for each in (self._curve(size) if way == CURVE else [way])]
        for one in self.made.values():
            if isinstance(one, Local):
                one.reset()  # what is made next starts from these parameters
        new = []
        for name in dict.fromkeys(["imperative", *names]):
            if name not in self.made and name not in self.left_out:
                try:
                    new += filter(None, [self.make(name)])
                except DiffersError as error:
                    self.left_out[name] = str(error)
        if new:
            same, differing = agree(new, self.made.get("imperative", new[0]), size)
            self.made.update({one.label: one for one in same})
            self.left_out.update(differing)
        return [self.made[name] for name in dict.fromkeys(names) if name in self.made]

    def make(self, name):
        """Make a contender; None if nobody has written it, `DiffersError` if it does not start."""
        own = self.workload
        if name in PEERS:
            return self._remote(name) if own.name in PEERS[name] else None
        mode = BY_HAND.get(own.name) if name == "hand" else name if name in LOOPS else "dynamic"
        if mode is None or name == ONCE and not isinstance(own.model, gdb.DynamicHybridBlock):
            return None
        if name in ("imperative", ONCE):  # how its cells are hybridized is its own
            own = make(own.name, self.args, **self.args.sizes)._replace(samples=own.samples)
        if name == ONCE:
            own.model.hybridize(trace_once=True)
        return Local(
            Runner(own, mode, options_of(name)), name, repeats=name.endswith(CACHED),
            most=self.args.loop_samples if name in (*LOOPS, ONE_BY_ONE) else None,
            by_length=mode == "padded", learns=name == ONCE,
        )  # fmt: skip

    def _remote(self, name):
        remote = Remote(name, self.workload, self.args.peers_python)
        self.stack.callback(remote.close)
        self.versions[name] = f"{remote.greeting['version']}; {remote.greeting['flags']}"
        return remote

    def _curve(self, size):
        """Name the ways of the curve, from the nodes of a minibatch at each granularity."""
        rows = self.count([f"gdb:{each}:depth" for each in CURVES], "inference", size)
        nodes = [row.nodes for row in rows]
        lowest, highest = max(LEAST * min(nodes), 1), max(MOST * max(nodes), 2)
        spread = np.geomspace(lowest, highest, self.args.points).round().astype(int)
        limits = [":0", *(f":{visits}" for visits in np.unique(spread)), "", CACHED]
        return [f"gdb:{each}:search{limit}" for each, limit in product(CURVES, limits)]

    def count(self, names, kind, size):
        """Run one minibatch in some of our own ways, for their counts."""
        batch = next(self.workload.minibatches(size, self.args.seed))
        runners = ((name, Runner(self.workload, options=options_of(name))) for name in names)
        return Rows(Local(runner, name).time(kind, [batch], size) for name, runner in runners)
