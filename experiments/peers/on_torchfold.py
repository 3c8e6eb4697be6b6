"""torchfold: the model as calls by name, which torchfold batches by depth."""

from functools import partial
from importlib.metadata import version
from types import SimpleNamespace

import torch
import torchfold

from .child import Peer
from .on_torch import PairsPeer

# torchfold 0.1.0 uses a class that PyTorch has renamed since.
torchfold.torchfold.torch = SimpleNamespace(
    **{**vars(torch), "tensor": SimpleNamespace(_TensorBase=torch.Tensor)}
)


class Pairs(PairsPeer):
    """One operation for leaves, and one for each number of children."""

    version = f"torchfold {version('torchfold')}, {PairsPeer.version}"
    prepare = Peer.prepare  # words are numbers, not arrays

    def __getattr__(self, name):
        if name.startswith("node"):
            return partial(self.node, int(name[len("node") :]))
        raise AttributeError(name)

    def node(self, children, words, *states):
        """Compute states of words, shape (N,), from h, then c, of children, shape (N, H) each."""
        x_forget, rest = self.inputs(words)
        if children:
            weight = self.p["encoder.cell.h2h_weight"]
            rest = torch.addmm(rest, sum(states[:children]), weight.t())
        i, o, u = rest.chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        for h_child, c_child in zip(states[:children], states[children:]):
            forget = torch.addmm(x_forget, h_child, self.p["encoder.cell.hf_weight"].t())
            c = torch.addcmul(c, forget.sigmoid(), c_child)
        return o.sigmoid() * c.tanh(), c

    def scores(self, batch):  # noqa: D102
        fold = torchfold.Fold()
        sides = [[self.root(fold, *s[k : k + 2]) for s, _ in batch] for k in (0, 2)]
        heads = [fold.add("head", left, right) for left, right in zip(*sides)]
        (scores,) = fold.apply(self, [heads])
        return scores

    def root(self, fold, words, tree):
        """Add the calls of a sentence; return the node of its state h."""
        states = [None] * len(words)
        for i in tree.order:
            h, c = list(zip(*(states[k] for k in tree.children[i]))) or [(), ()]
            node = fold.add(f"node{len(h)}", words[i], *h, *c)
            states[i] = node.split(2)
        return states[tree.root][0]
