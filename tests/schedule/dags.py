"""Random graphs, and slow but obvious reference implementations."""

from functools import lru_cache

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from gluon_dynbatch.schedule import POLICIES, Budget, analyze, check_groups, lower_bound
from gluon_dynbatch.schedule.dependencies import Dependencies, check_dependencies


def build(signature, preds, rows=None):
    offsets = np.cumsum([0] + [len(units) for units in preds], dtype=np.int64)
    flat = np.array([pred for units in preds for pred in units], np.int32)
    height = np.array([1] * len(signature) if rows is None else rows, np.int64)
    graph = Dependencies(np.array(signature, np.int32), offsets, flat, height)
    check_dependencies(graph)
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
    """Any DAG, also with parallel edges, gaps between signatures, and units without rows."""
    units = draw(st.integers(0, max_units))
    signatures = draw(st.sampled_from([[0], [0, 1], [2, 0, 5], [1, 7, 3, 4], [3, 100_000]]))
    signature = draw(st.lists(st.sampled_from(signatures), min_size=units, max_size=units))
    rows = draw(st.lists(st.integers(0, 5), min_size=units, max_size=units))
    preds = [
        draw(st.lists(st.integers(0, unit - 1), max_size=3)) if unit else []
        for unit in range(units)
    ]
    return build(signature, preds, rows)


def random_graph(seed, units, signatures, window):
    """Return a larger graph whose edges span at most `window` units; the larger, the wider."""
    rng = np.random.default_rng(seed)
    preds = [
        rng.integers(max(0, unit - window), unit, rng.integers(0, 4)).tolist() if unit else []
        for unit in range(units)
    ]
    return build(rng.integers(0, signatures, units).tolist(), preds)


def slow_depth(graph):
    layers = enumerate(nx.topological_generations(as_networkx(graph)))
    depths = sorted((unit, depth) for depth, layer in layers for unit in layer)
    return [depth for _, depth in depths]


def slow_bound(graph):
    """Sum up, over signatures, the most units of the signature on a path from any start."""
    dag, signature, most = nx.DiGraph(as_networkx(graph)), graph.signature.tolist(), {}
    for start, key in enumerate(signature):
        for _, unit, edge in dag.edges(data=True):
            edge["weight"] = int(signature[unit] == key)
        reachable = dag.subgraph({start} | nx.descendants(dag, start))
        most[key] = max(most.get(key, 0), 1 + nx.dag_longest_path_length(reachable))
    return sum(most.values())


def fewest_launches(graph):
    """Search all schedules whose launches take every ready unit, which is never worse."""
    preds = [sum({1 << pred for pred in units}) for units in pred_lists(graph)]
    everything = (1 << graph.size) - 1

    @lru_cache(maxsize=None)
    def remaining(done):
        if done == everything:
            return 0
        ready = {}
        for unit in range(graph.size):
            if not done >> unit & 1 and preds[unit] & ~done == 0:
                key = int(graph.signature[unit])
                ready[key] = ready.get(key, 0) | 1 << unit
        return 1 + min(remaining(done | units) for units in ready.values())

    return remaining(0)


def check_contract(graph, visits):
    """Check groups; a larger budget or another policy than "depth" adds no launches."""
    edges = [max(0, analyze(graph, "depth", Budget()).visits + step) for step in (-1, 0, 1)]
    budgets = [*(Budget(visits=v) for v in sorted([0, *visits, *edges])), Budget()]
    counts = {}
    for policy in POLICIES:
        analyses = [analyze(graph, policy, budget) for budget in budgets]
        for budget, analysis in zip(budgets, analyses):
            check_groups(graph, analysis.groups)
            assert budget.visits is None or analysis.visits <= budget.visits
        counts[policy] = [analysis.launches for analysis in analyses]
        assert counts[policy] == sorted(counts[policy], reverse=True)
        assert counts[policy][0] == graph.size
        # A budget of the visits that were charged gives the same groups.
        charged = analyze(graph, policy, Budget(visits=analyses[-1].visits))
        assert (charged.groups == analyses[-1].groups).all()
        assert all(count <= depth for count, depth in zip(counts[policy], counts["depth"]))
    assert lower_bound(graph) <= counts["search"][-1] <= counts["agenda"][-1]
