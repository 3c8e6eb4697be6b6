"""PyTorch batched by hand: trees level by level over the minibatch, the tagger with nn.LSTM."""

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from baselines.levels import divide
from relatedness.trees import phrases_of

from .child import EPSILON, Peer


def states_of(i, o, u, c_sum=None):
    """Compute states h and c from gates, and from the sum over children of forget gate times c."""
    c = i.sigmoid() * u.tanh() if c_sum is None else torch.addcmul(c_sum, i.sigmoid(), u.tanh())
    return o.sigmoid() * c.tanh(), c


class TorchPeer(Peer):
    """A model with plain tensors as parameters, in ``self.p`` by name.

    A subclass has ``loss(batch)``, the mean of the losses of a minibatch's samples.
    """

    version = f"PyTorch {torch.__version__}"
    flags = f"threads {torch.get_num_threads()}, fused Adagrad"

    def __init__(self, task):
        self.p = {
            name: torch.nn.Parameter(torch.tensor(value), name != "embedding.weight")
            for name, value in task.parameters.items()
        }
        self.trained = [p for p in self.p.values() if p.requires_grad]
        self.first = [p.detach().clone() for p in self.trained]
        # As in MXNet, epsilon is added to the history, not to its root.
        self.optimizer = torch.optim.Adagrad(
            self.trained, task.learning_rate, initial_accumulator_value=EPSILON, eps=0, fused=True
        )
        self.decay = 1 - task.learning_rate * task.weight_decay
        super().__init__(task)

    def affine(self, x, name):
        """Apply the affine layer whose parameters' names begin with `name`."""
        return functional.linear(x, self.p[f"{name}weight"], self.p[f"{name}bias"])

    def vectors(self, words):
        """Look up vectors of words, shape (N,)."""
        return self.p["embedding.weight"][torch.as_tensor(words)]

    def step(self, batch):  # noqa: D102
        loss = self.loss(batch)
        loss.backward()
        with torch.no_grad():
            torch._foreach_mul_(self.trained, self.decay)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def gradients(self, numbers):
        """Return the gradients of the loss of a minibatch, by the names of parameters."""
        (batch,) = self.batches([numbers])
        names = [name for name, p in self.p.items() if p.requires_grad]
        found = torch.autograd.grad(self.loss(batch), self.trained)
        return {name: gradient.numpy() for name, gradient in zip(names, found)}

    @torch.no_grad()
    def reset(self):  # noqa: D102
        for p, first in zip(self.trained, self.first):
            p.copy_(first)


class PairsPeer(TorchPeer):
    """The relatedness model; words of a prepared sample are arrays.

    A subclass has ``roots(words, trees)``, the states of the roots of trees, shape (trees, H).
    """

    def prepare(self, sample):  # noqa: D102
        (left, left_tree, right, right_tree), target = sample
        return (np.array(left), left_tree, np.array(right), right_tree), target

    def scores(self, batch):
        """Compute log-probabilities of the scores, shape (N, CLASSES)."""
        words, trees, *right = zip(*(inputs for inputs, _ in batch))
        return self.head(*self.roots(words + right[0], trees + right[1]).chunk(2))

    def inputs(self, words):
        """Project word vectors for the forget gates, and for the other gates."""
        x = self.affine(self.vectors(words), "encoder.cell.i2h_")
        hidden = x.shape[1] // 4
        return x.split([hidden, 3 * hidden], 1)

    def head(self, left, right):
        """Score pairs of roots, shape (N, H) each."""
        p, linear = self.p, functional.linear
        angle = linear(left * right, p["similarity.angle_weight"], p["similarity.hidden_bias"])
        distance = linear((left - right).abs(), p["similarity.distance_weight"])
        return self.affine((angle + distance).sigmoid(), "similarity.score_").log_softmax(1)

    def loss(self, batch):  # noqa: D102
        targets = torch.tensor([target for _, (target,) in batch])
        return functional.kl_div(self.scores(batch), targets, reduction="batchmean")

    @torch.inference_mode()
    def predict(self, batch):  # noqa: D102
        return self.scores(batch).numpy()


class Pairs(PairsPeer):
    """All leaves at once, then level by level up to the roots."""

    flags = f"{PairsPeer.flags}; levels, index_select and index_add"

    def roots(self, words, trees):  # noqa: D102
        levels = divide([tree.heads for tree in trees])
        starts = levels.starts
        inner, sizes = starts[-1], np.diff(starts).tolist()
        parents = torch.from_numpy(levels.parents)
        inputs = self.inputs(np.concatenate(words)[levels.words])
        (x_forget, _), (x_rest, x_leaves) = (x.split([inner, len(x) - inner]) for x in inputs)
        h, c = states_of(*x_leaves.chunk(3, 1))
        empty = h.new_zeros(2, inner, h.shape[1])
        h_sum, c_sum = self.add_children(h, c, x_forget, parents[inner:], empty)
        columns = (each.split(sizes) for each in (x_forget, x_rest, h_sum, c_sum))
        by_level = zip(*columns, parents[:inner].split(sizes))
        children = ()
        for level, (forgets, rests, *sums, heads) in reversed(list(enumerate(by_level))):
            if children:
                sums = self.add_children(*children[:2], forgets, children[2], sums)
            gates = torch.addmm(rests, sums[0], self.p["encoder.cell.h2h_weight"].t())
            h, c = states_of(*gates.chunk(3, 1), sums[1])
            children = (h, c, heads - starts[level - 1]) if level else (h,)
        return children[0]

    def add_children(self, h, c, forgets, parents, sums):
        """Add states of children to the sums of their parents."""
        weight = self.p["encoder.cell.hf_weight"]
        forget = torch.addmm(forgets.index_select(0, parents), h, weight.t()).sigmoid()
        h_sum, c_sum = sums
        return h_sum.index_add(0, parents, h), c_sum.index_add(0, parents, forget * c)


class Labels(TorchPeer):
    """Models that score labels, which are the last part of a sample.

    A subclass has ``scores(batch)``: scores, and the number of the label of each row.
    """

    def loss(self, batch):  # noqa: D102
        scores, order = self.scores(batch)
        labels = np.concatenate([sample[-1] for sample in batch])
        losses = functional.cross_entropy(scores, torch.from_numpy(labels[order]), reduction="none")
        sizes = np.array([len(sample[-1]) for sample in batch])
        weights = np.repeat(1 / (sizes * len(sizes)), sizes).astype(np.float32)
        return losses @ torch.from_numpy(weights[order])

    @torch.inference_mode()
    def predict(self, batch):  # noqa: D102
        scores, order = self.scores(batch)
        return scores.numpy()[np.argsort(order)]


class Tagger(Labels):
    """Packs words before it looks up vectors, so that padding costs nothing."""

    flags = f"{TorchPeer.flags}; nn.LSTM, packed"

    def __init__(self, task):
        super().__init__(task)
        gates, size = task.parameters["forwards.i2h_weight"].shape
        self.lstm = torch.nn.LSTM(size, gates // 4, bidirectional=True)
        for suffix, side in (("l0", "forwards"), ("l0_reverse", "backwards")):
            for kind in ("weight", "bias"):  # gates have the same order as in Gluon
                for theirs, ours in (("ih", "i2h"), ("hh", "h2h")):
                    parameter = self.p[f"{side}.{ours}_{kind}"]
                    setattr(self.lstm, f"{kind}_{theirs}_{suffix}", parameter)

    def prepare(self, sample):  # noqa: D102
        (words,), labels = sample
        return torch.tensor(words), np.array(labels, np.int64)

    def scores(self, batch):  # noqa: D102
        words = [sample[0] for sample in batch]
        packed = pack_sequence(words, enforce_sorted=False)
        vectors = functional.embedding(packed.data, self.p["embedding.weight"])
        states, _ = self.lstm(PackedSequence(vectors, *packed[1:]))
        numbers = torch.arange(len(vectors)).split([len(each) for each in words])
        order = pack_sequence(numbers, enforce_sorted=False).data.numpy()
        return self.affine(states.data, "score."), order


class Trees(Labels):
    """All leaves at once, then level by level up to the roots."""

    flags = f"{TorchPeer.flags}; levels, index_add"

    def prepare(self, sample):
        """List phrases in post-order, and add a root without states above the sentence."""
        (leaves, shape), labels = sample
        phrases = phrases_of(shape)
        words = [leaves[parts] if isinstance(parts, int) else -1 for parts in phrases]
        heads, sides = [len(phrases)] * len(phrases), [0] * len(phrases)
        for head, parts in enumerate(phrases):
            for side, part in enumerate(parts if words[head] < 0 else ()):
                heads[part], sides[part] = head, side
        return [*heads, -1], [*words, -1], [*sides, 0], np.array(labels, np.int64)

    def scores(self, batch):  # noqa: D102
        heads, *others, _ = zip(*batch)
        nodes, parents, starts = divide(heads)
        inner = starts[-1]
        words, sides = (np.concatenate(each)[nodes] for each in others)
        gates = self.affine(self.vectors(words[inner:]), "leaf.gates.")
        h, c = states_of(*gates.chunk(3, 1))
        # Each inner node has two rows, for the states of its parts.
        slots = torch.from_numpy(2 * parents + sides)
        empty = h.new_zeros(2 * inner, h.shape[1])
        counts = [2 * count for count in np.diff(starts).tolist()]
        h_parts, c_parts = (empty.index_add(0, slots[inner:], x).split(counts) for x in (h, c))
        results = [h]
        for level in range(len(counts) - 1, 0, -1):
            parts = h_parts[level], c_parts[level]
            if len(results) > 1:
                rows = slots[starts[level + 1] : starts[level + 2]] - 2 * starts[level]
                parts = (part.index_add(0, rows, x) for part, x in zip(parts, (h, c)))
            h, c = self.join(*parts)
            results.append(h)
        # The added roots are level 0, and have no labels.
        order = nodes[starts[1] :]
        order = order - np.repeat(np.arange(len(heads)), list(map(len, heads)))[order]
        return self.affine(torch.cat(results[::-1]), "score."), order

    def join(self, h, c):
        """Compute states of phrases; rows 2i and 2i + 1 are the parts of phrase i."""
        pairs = len(h) // 2
        gates = self.affine(h.view(pairs, -1), "join.gates.")
        i, forgets, o, u = gates.split([n * h.shape[1] for n in (1, 2, 1, 1)], 1)
        c_sum = (forgets.sigmoid() * c.view(pairs, -1)).view(pairs, 2, -1).sum(1)
        return states_of(i, o, u, c_sum)
