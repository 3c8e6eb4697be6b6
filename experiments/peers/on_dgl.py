"""DGL: the Tree-LSTM as messages from children to parents, in topological order."""

import os
import sys
from types import ModuleType

import numpy as np
import packaging.version
import torch

from .on_torch import PairsPeer, states_of

os.environ["DGLBACKEND"] = "pytorch"
# DGL 1.1.3 imports `packaging` from setuptools, which no longer contains it.
sys.modules["setuptools.extern"] = ModuleType("setuptools.extern")
sys.modules["setuptools.extern.packaging"] = packaging

import dgl  # noqa: E402
from dgl import function as fn  # noqa: E402


class Pairs(PairsPeer):
    """A message is the child's h and its c times the forget gate; DGL sums them."""

    version = f"DGL {dgl.__version__}, {PairsPeer.version}"
    flags = f"{PairsPeer.flags}; one graph a minibatch, built-in sum, topological order"

    def roots(self, words, trees):  # noqa: D102
        sizes = np.array([len(each) for each in words])
        offsets = np.cumsum(sizes) - sizes
        heads = np.concatenate([tree.heads for tree in trees])
        children = np.flatnonzero(heads >= 0)
        parents = (heads + np.repeat(offsets, sizes))[children]
        edges = torch.from_numpy(children), torch.from_numpy(parents)
        graph = dgl.graph(edges, num_nodes=len(heads))
        forget, rest = self.inputs(np.concatenate(words))
        graph.ndata["x_forget"], graph.ndata["x"] = forget, rest
        for name, width in (("sums", 2), ("h", 1), ("c", 1)):
            graph.ndata[name] = rest.new_zeros(len(rest), width * forget.shape[1])
        leaves, *above = dgl.topological_nodes_generator(graph)
        graph.apply_nodes(self.node, leaves)
        for nodes in above:
            graph.pull(nodes, self.message, fn.sum("message", "sums"), self.node)
        roots = np.array([tree.root for tree in trees]) + offsets
        return graph.ndata["h"][torch.from_numpy(roots)]

    def message(self, edges):
        """Compute the messages of children to their parents, shape (edges, 2H)."""
        h, weight = edges.src["h"], self.p["encoder.cell.hf_weight"]
        forget = torch.addmm(edges.dst["x_forget"], h, weight.t()).sigmoid()
        return {"message": torch.cat([h, forget * edges.src["c"]], 1)}

    def node(self, nodes):
        """Compute states from word vectors and the sums over children."""
        h_sum, c_sum = nodes.data["sums"].chunk(2, 1)
        weight = self.p["encoder.cell.h2h_weight"]
        gates = torch.addmm(nodes.data["x"], h_sum, weight.t()).chunk(3, 1)
        return dict(zip("hc", states_of(*gates, c_sum)))
