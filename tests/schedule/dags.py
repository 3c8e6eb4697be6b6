"""Random graphs, and slow but obvious answers to compare with."""

from functools import lru_cache

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from gluon_dynbatch.schedule import POLICIES, Budget, analyze, check_groups, lower_bound
from gluon_dynbatch.schedule.dependencies import Dependencies, check_graph


def build(signature, preds, rows=None):
    offsets = np.cumsum([0] + [len(units) for units in preds], dtype=np.int64)
    flat = np.array([pred for units in preds for pred in units], np.int32)
    height = np.array([1] * len(signature) if rows is None else rows, np.int64)
    graph = Dependencies(np.array(signature, np.int32), offsets, flat, height)
    check_graph(graph)
    return graph


def pred_lists(graph):
    return [part.tolist() for part in np.split(graph.preds, graph.offsets[1:-1])][: graph.size]


def as_networkx(graph):
    dag = nx.MultiDiGraph()
    dag.add_nodes_from(range(graph.size))
    for unit, preds in enumerate(pred_lists(graph)):
        dag.add_edges_from((pred, unit) for pred in preds)
    return dag


@st.composite
def graphs(draw, max_units=24):
    """Any DAG: several edges between two units, gaps between the signature ids, rows of zero."""
    units = draw(st.integers(0, max_units))
    names = draw(st.sampled_from([[0], [0, 1], [2, 0, 5], [1, 7, 3, 4], [3, 100_000]]))
    signature = draw(st.lists(st.sampled_from(names), min_size=units, max_size=units))
    rows = draw(st.lists(st.integers(0, 5), min_size=units, max_size=units))
    preds = [
        draw(st.lists(st.integers(0, unit - 1), max_size=3)) if unit else []
        for unit in range(units)
    ]
    return build(signature, preds, rows)


def random_graph(seed, units, signatures, window):
    """Make a larger graph whose edges reach back at most `window` units; wide if that is large."""
    rng = np.random.default_rng(seed)
    preds = [
        rng.integers(max(0, unit - window), unit, rng.integers(0, 4)).tolist() if unit else []
        for unit in range(units)
    ]
    return build(rng.integers(0, signatures, units).tolist(), preds)


def slow_depth(graph):
    layers = enumerate(nx.topological_generations(as_networkx(graph)))
    return [depth for _, depth in sorted((unit, depth) for depth, some in layers for unit in some)]


def slow_bound(graph):
    """Count, per signature, the units on a path that has most of them, one start after another."""
    dag, signature, most = nx.DiGraph(as_networkx(graph)), graph.signature.tolist(), {}
    for start, own in enumerate(signature):
        for _, unit, edge in dag.edges(data=True):
            edge["weight"] = int(signature[unit] == own)
        reached = dag.subgraph({start} | nx.descendants(dag, start))
        most[own] = max(most.get(own, 0), 1 + nx.dag_longest_path_length(reached))
    return sum(most.values())


def fewest_launches(graph):
    """Try all schedules; launching every ready unit of a signature is never a mistake."""
    preds = [sum({1 << pred for pred in units}) for units in pred_lists(graph)]
    everything = (1 << graph.size) - 1

    @lru_cache(maxsize=None)
    def rest(done):
        if done == everything:
            return 0
        ready = {}
        for unit in range(graph.size):
            if not done >> unit & 1 and preds[unit] & ~done == 0:
                key = int(graph.signature[unit])
                ready[key] = ready.get(key, 0) | 1 << unit
        return 1 + min(rest(done | units) for units in ready.values())

    return rest(0)


def check_promises(graph, visits):
    """Check that groups are valid, and that neither more visits nor a policy add launches."""
    around = [max(0, analyze(graph, "depth", Budget()).visits + step) for step in (-1, 0, 1)]
    budgets = [*(Budget(visits=v) for v in sorted([0, *visits, *around])), Budget()]
    counts = {}
    for policy in POLICIES:
        found = [analyze(graph, policy, budget) for budget in budgets]
        for budget, analysis in zip(budgets, found):
            check_groups(graph, analysis.groups)
            assert budget.visits is None or analysis.visits <= budget.visits
        counts[policy] = [analysis.launches for analysis in found]
        assert counts[policy] == sorted(counts[policy], reverse=True)
        assert counts[policy][0] == graph.size
        # With as many visits as are charged, all is the same.
        charged = analyze(graph, policy, Budget(visits=found[-1].visits))
        assert (charged.groups == found[-1].groups).all()
        assert all(count <= depth for count, depth in zip(counts[policy], counts["depth"]))
    assert lower_bound(graph) <= counts["search"][-1] <= counts["agenda"][-1]
