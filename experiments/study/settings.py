"""The settings that the study compares."""

from __future__ import annotations

from typing import Any, Dict, Optional

import gluon_dynbatch as gdb
from timing.contest import Contender
from workloads.base import Workload
from workloads.runner import Runner

GRANULARITIES = ("operator", "block", "graph")
POLICIES = ("depth", "agenda", "search")
AUTO, PLAIN = "auto", "plain hybridized loop"
#: Loops over samples run minibatches of so many samples at most.
LOOP_SAMPLES = 16


def options(granularity: str, policy: str, budget: Any = None) -> Dict[str, Any]:
    """Give the options of `gluon_dynbatch.batching` for a fixed setting."""
    return {"granularity": granularity, "policy": policy, "analysis_budget": budget}


def fixed(workload: Workload, granularity: str, policy: str, budget: Optional[float]) -> Contender:
    """Make the contender of a fixed setting; the budget is in milliseconds."""
    runner = Runner(workload, options=options(granularity, policy, budget))
    limit = "no limit" if budget is None else f"{budget:g} ms"
    return Contender(runner, f"{granularity} by {policy} ({limit})")


def automatic(workload: Workload) -> Contender:
    """Make the contender that leaves granularity, policy and budget to the library."""
    return Contender(Runner(workload, options={"analysis_budget": "auto"}), AUTO)


def one_by_one(workload: Workload) -> Contender:
    """Make the contender that records and runs call by call, without any analysis."""
    runner = Runner(workload, options={"analysis_budget": gdb.Budget(visits=0)})
    return Contender(runner, "one by one (budget 0)", most=LOOP_SAMPLES)


def plain_loop(workload: Workload) -> Contender:
    """Make the contender that does not use the library: hybridized cells, sample by sample."""
    return Contender(Runner(workload, "hybridized"), PLAIN, most=LOOP_SAMPLES)
