"""All ways of running a workload, by name.

`imperative`, `hybridized`
    Sample by sample, cells plain or hybridized.
`hand`
    Batched by hand, for workloads that have it; see `baselines`.
`gdb`, `gdb-once`
    ``gdb.batching()``, all options on auto; the latter traces each structure of arguments once.
`gdb-words`, `gdb-states`
    The same as `gdb`, for workloads whose models can drop elements of all word vectors, or of all
    states; their losses are not compared.
`gdb:block:depth`, `gdb:block:search:10ms`, `gdb:block:search:500`, `gdb:block:search:cached`
    A fixed granularity and policy; with no limit on the analysis, a limit in time or in visits, or
    with cached plans.
`dynet`, `dynet-lstm`, `torch`, `torchfold`, `dgl`, `jax`
    Other systems, in their own processes; see `peers`.

After any of these but other systems, `-np` uses arrays of `mx.np`, for models that can have both.
After any, `-buckets` regroups the samples of a round into minibatches of similar lengths,
as programs do that pad; `gdb-buckets` and `jax-buckets` run the same ones.

`settings` means all fixed settings, `curve` a range of budgets from none to no limit, `peers` all
other systems.
"""

import argparse
import inspect
import re
from itertools import product

import numpy as np

import gluon_dynbatch as gdb
from gluon_dynbatch.schedule import POLICIES
from workloads.front import NP, semantics
from workloads.registry import WORKLOADS, make

from .contest import DiffersError, Local, agree
from .remote import PEERS, Remote, own_threads
from .runner import BATCHED, Runner
from .tables import CACHED, LOOPS, NUMPY, Measured, Rows

GRANULARITIES = ("operator", "block", "graph")
ONCE = "gdb-once"
#: With minibatches that come again, whose plans are kept.
AGAIN = ONCE + CACHED
#: Ways with dropout, and what they drop.
DROPPED = {"gdb-words": "words", "gdb-states": "states"}
LOCAL = (*LOOPS, "hand", "gdb", ONCE, AGAIN, *DROPPED)
#: Without analysis: every call is a launch.
ONE_BY_ONE = "gdb:block:depth:0"
#: Ways whose launches are counted.
COUNTED = (
    "gdb",
    *(f"gdb:{each}:{policy}" for each, policy in product(GRANULARITIES[:2], POLICIES)),
)
#: Ends the name of a way that runs minibatches of similar lengths.
BUCKETS = "-buckets"
GROUPS = {
    "settings": (
        ONE_BY_ONE,
        *(f"gdb:{each}:{policy}" for each, policy in product(GRANULARITIES, POLICIES)),
        *(f"gdb:{each}:search:10ms" for each in GRANULARITIES),
    ),
    "peers": (*PEERS, f"jax{BUCKETS}"),
}
CURVE = "curve"
#: Granularities of the curves; smallest and largest budget as a multiple of the nodes.
CURVES, SMALLEST, LARGEST = ("operator", "block"), 1 / 8, 64
#: Name of a fixed setting: granularity, policy, and a limit in milliseconds or visits.
SETTING = re.compile(
    rf"gdb:({'|'.join(GRANULARITIES)}):({'|'.join(POLICIES)})(?::([0-9.]+)ms|:([0-9]+)|{CACHED})?"
)


def options_of(name):
    """Return the options of `gluon_dynbatch.batching` for a way of this library."""
    match = SETTING.fullmatch(parse(name)[0])
    if match is None:  # all on auto
        return {}
    granularity, policy, ms, visits = match.groups()
    budget = gdb.Budget(visits=int(visits)) if visits else float(ms) if ms else None
    return {"granularity": granularity, "policy": policy, "analysis_budget": budget}


def read_ways(text):
    """Parse comma-separated names; a group except `curve` is replaced by its members."""
    ways = {}
    for name in map(str.strip, text.split(",")):
        way, interface, _ = parse(name)
        known = way in LOCAL or SETTING.fullmatch(way) or way in PEERS and not interface
        if not known and name not in (*GROUPS, CURVE):
            setting = f"gdb:GRANULARITY:POLICY[:LIMIT], any of these with {NUMPY} or {BUCKETS}"
            every = ", ".join((*LOCAL, *PEERS, setting, *GROUPS, CURVE))
            raise argparse.ArgumentTypeError(f"{name!r} is none of {every}")
        ways.update(dict.fromkeys(GROUPS.get(name, (name,))))
    return list(ways)


def bare(name):
    """Return the name of a way without what its minibatches are."""
    return name[: -len(BUCKETS)] if name.endswith(BUCKETS) else name


def parse(name):
    """Split the name of a way into that without endings, the interface, and if it is by length.

    The interface is None if the name does not say one.
    """
    way = bare(name)
    interface = NP if way.endswith(NUMPY) else None
    return way[: -len(NUMPY)] if interface else way, interface, way != name


def _copy_parameters(source, target):
    """Copy the values of all parameters to an equal model of the other interface."""
    values = source._collect_params_with_prefix()
    with semantics(NP):
        for name, parameter in target._collect_params_with_prefix().items():
            parameter.set_data(values[name].data().as_np_ndarray())


class Roster:
    """The contenders of one workload, which are made on demand and compared with the loop.

    `args` are the options of the benchmark; `stack` ends the processes of other systems.
    """

    def __init__(self, name, args, stack):
        self.args, self.stack = args, stack
        self.workload = make(name, args, **args.sizes)
        self.contenders = {}  # by way
        self.left_out = {}  # ways that do not take part, with reasons
        self.versions = {}  # of other systems

    def measured(self):
        """Describe the workload, without measurements so far."""
        workload, entry = self.workload, WORKLOADS[self.workload.name]
        return Measured(workload.title, workload.counted, entry.source, entry.reading,
                        workload.lines, self.left_out, self.versions)  # fmt: skip

    def gather(self, ways, size):
        """Return the contenders of these ways, without those that do not agree with the loop."""
        names = [each for way in ways for each in (self._curve(size) if way == CURVE else [way])]
        for contender in self.contenders.values():
            if isinstance(contender, Local):
                contender.reset()  # new contenders copy the parameters
        new = []
        for name in dict.fromkeys(["imperative", *names]):
            if name not in self.contenders and name not in self.left_out:
                try:
                    new += filter(None, [self.make(name)])
                except DiffersError as error:
                    self.left_out[name] = str(error)
        if new:
            agreeing, differing = agree(new, self.contenders.get("imperative", new[0]), size)
            self.contenders.update({each.label: each for each in agreeing})
            self.left_out.update(differing)
        return [self.contenders[way] for way in dict.fromkeys(names) if way in self.contenders]

    def make(self, name):
        """Make the contender of a way; None if the workload has none."""
        label, (name, interface, by_length) = name, parse(name)
        if interface and interface not in WORKLOADS[self.workload.name].interfaces[1:]:
            return None
        if by_length and len({sample.length for sample in self.workload.samples}) == 1:
            return None
        workload, mode = self.workload, name if name in LOOPS else "dynamic"
        if name in PEERS:
            if workload.name not in PEERS[name]:
                return None
            remote = Remote(name, workload, self.args, label, own_threads(), by_length=by_length)
            self.stack.callback(remote.close)
            greeting = remote.greet()
            self.versions[label] = f"{greeting['version']}; {greeting['flags']}"
            return remote
        if name == "hand":
            batched = BATCHED.get(workload.name)
            if not batched or (interface or workload.interface) not in batched.interfaces:
                return None
            mode, by_length = "manual", by_length or batched.by_length
        once = name in (ONCE, AGAIN)
        if once and not isinstance(workload.model, gdb.DynamicHybridBlock):
            return None
        dropped = {"dropped": DROPPED[name]} if name in DROPPED else {}
        if dropped and "dropped" not in inspect.signature(type(workload.model)).parameters:
            return None
        if name in ("imperative", *DROPPED) or once or interface:  # these need a model each
            copy = make(workload.name, self.args, interface, **self.args.sizes, **dropped)
            if interface:  # whose initializers draw other numbers
                _copy_parameters(workload.model, copy.model)
            workload = copy._replace(samples=workload.samples)
        if once:
            workload.model.hybridize(trace_once=True)
        return Local(
            Runner(workload, mode, options_of(name)), label, repeats=name.endswith(CACHED),
            max_samples=self.args.loop_samples if name in (*LOOPS, ONE_BY_ONE) else None,
            by_length=by_length, learns=once,
            **({"same_steps": 0} if dropped else {}),
        )  # fmt: skip

    def _curve(self, size):
        """List the ways of the curve; budgets depend on the nodes of a minibatch."""
        rows = self.count([f"gdb:{each}:depth" for each in CURVES], "inference", size)
        nodes = [row.nodes for row in rows]
        lowest, highest = max(SMALLEST * min(nodes), 1), max(LARGEST * max(nodes), 2)
        budgets = np.geomspace(lowest, highest, self.args.points).round().astype(int)
        limits = [":0", *(f":{visits}" for visits in np.unique(budgets)), "", CACHED]
        return [f"gdb:{each}:search{limit}" for each, limit in product(CURVES, limits)]

    def count(self, names, kind, size):
        """Run one minibatch in several ways of this library; return their rows."""
        batch = next(self.workload.minibatches(size, self.args.seed))
        runners = ((name, Runner(self.workload, options=options_of(name))) for name in names)
        return Rows(Local(runner, name).time(kind, [batch], size) for name, runner in runners)
