"""Graphs from drawings, random graphs, and slow but obvious answers to compare with."""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Dict, List, NamedTuple, Sequence

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from gluon_dynbatch.schedule import POLICIES, Budget, analyze, check_groups, lower_bound
from gluon_dynbatch.schedule.dependencies import Dependencies, check_graph

Order = Callable[[nx.DiGraph], List[str]]


class Drawing(NamedTuple):
    """A graph with the names that its units have in the drawing."""

    graph: Dependencies
    names: List[str]

    def launches(self, groups: np.ndarray) -> List[str]:
        """Write each launch as the sorted names of its units, in order of the launches."""
        check_groups(self.graph, groups)
        members: Dict[int, List[str]] = {}
        for name, group in zip(self.names, groups.tolist()):
            members.setdefault(group, []).append(name)
        return [" ".join(sorted(members[group])) for group in sorted(members)]


def breadth_first(dag: nx.DiGraph) -> List[str]:
    """Record in the order of the names, sample after sample as far as possible."""
    return list(nx.lexicographical_topological_sort(dag))


def depth_first(dag: nx.DiGraph) -> List[str]:
    """Record in the opposite order: whatever may come last in the other one comes first."""
    return list(nx.lexicographical_topological_sort(dag, key=lambda name: [-ord(c) for c in name]))


def draw(text: str, order: Order = breadth_first) -> Drawing:
    """Read lines such as ``a0 -> b1 -> a2``; the letter of a unit is its signature."""
    dag = nx.DiGraph()
    for line in text.strip().splitlines():
        units = [unit.strip() for unit in line.split("->")]
        nx.add_path(dag, units)
    names = order(dag)
    place = {name: number for number, name in enumerate(names)}
    preds = [[place[pred] for pred in dag.predecessors(name)] for name in names]
    letters = sorted({name[0] for name in names})
    return Drawing(build([letters.index(name[0]) for name in names], preds), names)


def build(
    signature: List[int], preds: List[List[int]], rows: List[int] | None = None
) -> Dependencies:
    offsets = np.cumsum([0] + [len(units) for units in preds], dtype=np.int64)
    flat = np.array([pred for units in preds for pred in units], np.int32)
    height = np.array([1] * len(signature) if rows is None else rows, np.int64)
    graph = Dependencies(np.array(signature, np.int32), offsets, flat, height)
    check_graph(graph)
    return graph


def pred_lists(graph: Dependencies) -> List[List[int]]:
    return [part.tolist() for part in np.split(graph.preds, graph.offsets[1:-1])][: graph.size]


def as_networkx(graph: Dependencies) -> nx.DiGraph:
    dag = nx.DiGraph()
    dag.add_nodes_from(range(graph.size))
    for unit, preds in enumerate(pred_lists(graph)):
        dag.add_edges_from((pred, unit) for pred in preds)
    return dag


@st.composite
def graphs(draw_value: Callable, max_units: int = 24) -> Dependencies:
    """Any DAG: several edges between two units, gaps between the signature ids, rows of zero."""
    units = draw_value(st.integers(0, max_units))
    names = draw_value(st.sampled_from([[0], [0, 1], [2, 0, 5], [1, 7, 3, 4]]))
    signature = draw_value(st.lists(st.sampled_from(names), min_size=units, max_size=units))
    rows = draw_value(st.lists(st.integers(0, 5), min_size=units, max_size=units))
    preds = [
        draw_value(st.lists(st.integers(0, unit - 1), max_size=3)) if unit else []
        for unit in range(units)
    ]
    return build(signature, preds, rows)


def random_graph(seed: int, units: int, signatures: int, window: int) -> Dependencies:
    """Make a larger graph whose edges reach back at most `window` units; wide if that is large."""
    rng = np.random.default_rng(seed)
    preds = [
        rng.integers(max(0, unit - window), unit, rng.integers(0, 4)).tolist() if unit else []
        for unit in range(units)
    ]
    return build(rng.integers(0, signatures, units).tolist(), preds)


def random_trees(seed: int, trees: int, size: int) -> Dependencies:
    """Make trees in post-order whose units are told apart by their number of children."""
    rng = np.random.default_rng(seed)
    signature: List[int] = []
    preds: List[List[int]] = []
    for _ in range(trees):
        roots: List[int] = []
        for left in range(size - 1, -1, -1):
            wanted = int(rng.choice(5, p=[0.5, 0.28, 0.12, 0.06, 0.04]))
            count = min(len(roots), wanted if left else len(roots), 4)
            preds.append([roots.pop() for _ in range(count)])
            signature.append(count)
            roots.append(len(signature) - 1)
    return build(signature, preds)


def slow_depth(graph: Dependencies) -> List[int]:
    depth: List[int] = []
    for preds in pred_lists(graph):
        depth.append(max((depth[pred] + 1 for pred in preds), default=0))
    return depth


def slow_path_counts(graph: Dependencies) -> List[int]:
    """Count for each unit the units of its signature on the paths that start with it."""
    dag, counts = as_networkx(graph), []
    for start in range(graph.size):
        alike = (graph.signature == graph.signature[start]).astype(int)
        most: Dict[int, int] = {}
        for unit in range(graph.size - 1, start - 1, -1):
            most[unit] = alike[unit] + max(
                (most[after] for after in dag.successors(unit)), default=0
            )
        counts.append(most[start])
    return counts


def slow_bound(graph: Dependencies) -> int:
    """Add up the largest count of each signature."""
    most: Dict[int, int] = {}
    for signature, count in sorted(zip(graph.signature.tolist(), slow_path_counts(graph))):
        most[signature] = count
    return sum(most.values())


def fewest_launches(graph: Dependencies) -> int:
    """Try all schedules; launching every ready unit of a signature is never a mistake."""
    preds = [sum({1 << pred for pred in units}) for units in pred_lists(graph)]
    everything = (1 << graph.size) - 1

    @lru_cache(maxsize=None)
    def rest(done: int) -> int:
        if done == everything:
            return 0
        ready: Dict[int, int] = {}
        for unit in range(graph.size):
            if not done >> unit & 1 and preds[unit] & ~done == 0:
                key = int(graph.signature[unit])
                ready[key] = ready.get(key, 0) | 1 << unit
        return 1 + min(rest(done | units) for units in ready.values())

    return rest(0)


def slow_agenda(graph: Dependencies, toward_bound: bool) -> List[int]:
    """Launch the most urgent signature, with every figure computed anew for each launch."""
    signature, preds = graph.signature.tolist(), pred_lists(graph)
    depth, counts = slow_depth(graph), slow_path_counts(graph)
    groups: Dict[int, int] = {}
    launch = 0
    while len(groups) < graph.size:
        left = [unit for unit in range(graph.size) if unit not in groups]
        ready = [unit for unit in left if groups.keys() >= set(preds[unit])]

        urgency: Dict[int, float] = {}
        for key in sorted({signature[unit] for unit in ready}):
            alike = [unit for unit in left if signature[unit] == key]
            longest = max(counts[unit] for unit in alike)
            top = {unit for unit in alike if counts[unit] == longest}
            missing = 1.0 - len(top.intersection(ready)) / len(top)
            average = sum(depth[unit] for unit in alike) / len(alike)
            tie = average / ((max(depth) + 1.0) * 1e3)
            urgency[key] = missing + tie if toward_bound else average
        chosen = min(urgency, key=urgency.__getitem__)
        groups.update((unit, launch) for unit in ready if signature[unit] == chosen)
        launch += 1
    return [groups[unit] for unit in range(graph.size)]


def slow_merge(graph: Dependencies, groups: List[int]) -> List[int]:
    """Merge the closest pair of groups of a signature, with the closure anew for each merge."""

    def closure() -> nx.DiGraph:
        dag = nx.DiGraph()
        dag.add_nodes_from(groups)
        dag.add_edges_from((groups[a], groups[b]) for a, b in as_networkx(graph).edges)
        return nx.transitive_closure(dag)

    signature = graph.signature.tolist()
    for key in sorted(set(signature)):
        while True:
            reach = closure()
            members = sorted({group for group, own in zip(groups, signature) if own == key})
            free = [
                (b - a, a, b)
                for a in range(len(members))
                for b in range(a + 1, len(members))
                if not reach.has_edge(members[a], members[b])
                and not reach.has_edge(members[b], members[a])
            ]
            if not free:
                break
            _, keep, drop = min(free)
            groups = [members[keep] if group == members[drop] else group for group in groups]
    reach = closure()
    order = sorted(set(groups), key=lambda group: (reach.in_degree(group), group))
    return [order.index(group) for group in groups]


def falls(counts: Sequence[int]) -> bool:
    return all(after <= before for before, after in zip(counts, counts[1:]))


def check_promises(graph: Dependencies, visits: Sequence[int]) -> None:
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
        assert falls(counts[policy]) and counts[policy][0] == graph.size
        assert (analyze(graph, policy, Budget()).groups == found[-1].groups).all()
        assert all(count <= depth for count, depth in zip(counts[policy], counts["depth"]))
    assert lower_bound(graph) <= min(map(min, counts.values()))
