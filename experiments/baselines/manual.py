"""The relatedness model batched by hand, as a careful engineer writes it without the library.

It is specific to this model; measurements of alternatives led to these choices:

- All leaves of a minibatch, half of its nodes, are one launch, as are the input projections of all
  other nodes and the forget gates of all leaves. The rest is one launch of each kind per level of
  inner nodes, counted from the root, so that children are always in the level before.
- Sums over children are products with a sparse matrix of ones (csr), the only segment sum of MXNet
  with a fast forward and backward pass. One matrix is created per minibatch and sliced per level,
  because creating one waits for the engine.
- Each gate has its own product with a slice of the weights: slicing weights once per minibatch is
  cheaper than splitting columns of every result.
- Cells are hybridized, and use ``Activation``, which oneDNN computes many times faster than
  ``sigmoid`` and ``tanh``.
- Levels read slices of arrays that were computed for all levels at once. On MXNet's tape, the
  gradient of each slice would be padded to full size and added. The tape is therefore cut there:
  the slices are variables whose gradients are slices of one buffer, from which the backward pass of
  the early part starts.
"""

from functools import partial
from typing import List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from workloads.front import ND

from .levels import divide


def _launches(size):
    """Make the launches of the Tree-LSTM; weights are arguments, sliced by gate."""

    def sigmoid(F, x):
        return F.Activation(x, act_type="sigmoid")

    def tanh(F, x):
        return F.Activation(x, act_type="tanh")

    def dense(F, x, weight, *bias):
        return F.FullyConnected(x, weight, *bias, num_hidden=size, no_bias=not bias)

    def states(F, i, o, u, *c_sum):
        c = sum(c_sum, sigmoid(F, i) * tanh(F, u))
        return sigmoid(F, o) * tanh(F, c), c

    def inputs(F, x, *parameters):
        """Project word vectors, shape (n, input), for some gates, shape (n, H) each."""
        return [dense(F, x, *each) for each in zip(parameters[::2], parameters[1::2])]

    def leaves(F, x, *parameters):
        """Compute states h and c of leaves, (n, H) each, from word vectors, (n, input)."""
        return states(F, *inputs(F, x, *parameters))

    def forget(F, h, c, gates, parents, weight):
        """Multiply c of each node, (n, H), by the forget gate, which reads its parent's `gates`."""
        return sigmoid(F, F.take(gates, parents) + dense(F, h, weight)) * c

    def level(F, i, o, u, h_sum, c_sum, *weights):
        """Compute states h and c of inner nodes, (n, H) each, from gates and sums over children."""
        gates = (x + dense(F, h_sum, weight) for x, weight in zip((i, o, u), weights))
        return states(F, *gates, c_sum)

    blocks = list(map(gluon.nn.HybridLambda, (inputs, leaves, forget, level)))
    for block in blocks:
        block.hybridize()
    return blocks


class _Edges(NamedTuple):
    """Edges from children to parents: of one level, or of all leaves."""

    parents: mx.nd.NDArray  # row of the parent of each child; (n,), int32
    matrix: mx.nd.NDArray  # (n, parents), csr: 1 for the parent of each child


class _Plan(NamedTuple):
    """A plan of a minibatch, as MXNet arrays."""

    words: mx.nd.NDArray  # (nodes,), int32
    starts: Tuple[int, ...]
    levels: List[_Edges]  # from level d + 1 to level d
    leaves: Optional[_Edges]  # from all leaves to all inner nodes; None without leaves


class ManualBatching:
    """Runs the `RelatednessModel` of a workload with its parameters; arrays are of `mx.nd`."""

    by_length, interfaces = False, (ND,)

    def __init__(self, workload):
        self.model, self._loss = workload.model, workload.loss_block
        self._cell = self.model.encoder.cell
        self._size = self._cell.hf_weight.shape[0]
        self._inputs, self._leaves, self._forget, self._level = _launches(self._size)

    def score(self, samples):
        """Compute the log-probabilities of the scores of all samples, shape (N, CLASSES)."""
        plan = _plan(samples)
        hf_weight = self._cell.hf_weight.data(plan.words.context)
        return self._late(plan, _by_level(plan, self._early(plan)), hf_weight)

    def differentiate(self, samples):
        """Compute the loss of all samples, shape (N,), and the gradients of all parameters.

        The parameters of the Tree-LSTM's cell must have gradients; the others may.
        """
        plan = _plan(samples)
        hf_weight = self._cell.hf_weight.data(plan.words.context)
        with autograd.record():
            early = self._early(plan)
            # Both sides of the cut use it, so it is cut as well.
            early.append(mx.nd.identity(hf_weight))
        values = [array.detach() for array in early]
        gradients = [mx.nd.empty(array.shape, array.context) for array in values]
        # Nothing reads the forget gates of the deepest level, nor the forget weights if it is the
        # only level, so their gradients are not written.
        gradients[0][plan.starts[-2] :] = 0
        gradients[-1][:] = 0
        *arrays, hf_weight = values
        *slots, hf_slot = gradients
        levels, slots = _by_level(plan, arrays), _by_level(plan, slots)
        autograd.mark_variables([hf_weight, *sum(levels, [])], [hf_slot, *sum(slots, [])])
        with autograd.record():
            targets = mx.nd.concat(*[sample.target for sample in samples], dim=0)
            losses = self._loss(self._late(plan, levels, hf_weight), targets)
        losses.backward()
        autograd.backward(early, gradients)
        return losses

    def _early(self, plan):
        """Compute everything that needs no inner node, shape (n, H) each, for all inner nodes.

        These are projections of their words for the gates forget, input, output and update, and
        sums over their leaves of h, and of forget gate times c.
        """
        cell, size, ctx = self._cell, self._size, plan.words.context
        inner = plan.starts[-1]
        weights = _rows(cell.i2h_weight.data(ctx), size)
        biases = _rows(cell.i2h_bias.data(ctx), size)
        parameters = [array for pair in zip(weights, biases) for array in pair]
        gates = self._inputs(self.model.embedding(plan.words[:inner]), *parameters)
        if plan.leaves is None:  # all sentences are single words
            return [*gates, mx.nd.zeros_like(gates[0]), mx.nd.zeros_like(gates[0])]
        vectors = self.model.embedding(plan.words[inner:])
        h, c = self._leaves(vectors, *parameters[2:])  # without forget gates
        sums = self._sums(plan.leaves, h, c, gates[0], cell.hf_weight.data(ctx))
        return [*gates, *sums]

    def _late(self, plan, levels, hf_weight):
        """Compute the inner nodes, level by level, and the scores from the roots."""
        weights = _rows(self._cell.h2h_weight.data(plan.words.context), self._size)
        h = c = None
        for level in reversed(range(len(levels))):
            forget, *gates, h_sum, c_sum = levels[level]
            if h is not None:
                more_h, more_c = self._sums(plan.levels[level], h, c, forget, hf_weight)
                h_sum, c_sum = h_sum + more_h, c_sum + more_c
            h, c = self._level(*gates, h_sum, c_sum, *weights)
        pairs = len(h) // 2
        return self.model.similarity(h[:pairs], h[pairs:])

    def _sums(self, edges, h, c, forget, hf_weight):
        """Sum h, and forget gate times c, over the children of each parent; (parents, H) each."""
        gated_c = self._forget(h, c, forget, edges.parents, hf_weight)
        add_up = partial(mx.nd.sparse.dot, edges.matrix, transpose_a=True, forward_stype="default")
        return add_up(h), add_up(gated_c)


def _plan(samples):
    """Plan a minibatch; the first sentences of all pairs come before the second ones."""
    ctx = samples[0].inputs[0].context
    words_a, trees_a, words_b, trees_b = zip(*(sample.inputs for sample in samples))
    levels = divide([tree.heads for tree in trees_a + trees_b])
    words = mx.nd.concat(*words_a, *words_b, dim=0).take(_upload(levels.words, ctx))
    nodes, starts = len(levels.words), levels.starts
    inner, spans = starts[-1], list(zip(starts, starts[1:], starts[2:]))
    entries = mx.nd.ones(nodes, ctx=ctx)
    ends = mx.nd.arange(nodes + 1, ctx=ctx, dtype="int64")
    columns = _upload(levels.parents, ctx)
    matrix = mx.nd.sparse.csr_matrix((entries, columns, ends), (nodes, inner), ctx, "float32")
    # Parents are numbered within their level; those of leaves, among all inner nodes.
    parents = levels.parents.copy()
    for above, start, stop in spans:
        parents[start:stop] -= above
    parents = _upload(parents.astype(np.int32), ctx)
    by_level = [
        _Edges(parents[start:stop], mx.nd.slice(matrix, (start, above), (stop, start)))
        for above, start, stop in spans
    ]
    leaves = None
    if inner < nodes:
        leaves = _Edges(parents[inner:], mx.nd.slice(matrix, (inner,), (nodes,)))
    return _Plan(words, starts, by_level, leaves)


def _upload(array, ctx):
    return mx.nd.from_numpy(array).as_in_context(ctx)  # no copy and no waiting on a CPU


def _by_level(plan, arrays):
    """Slice arrays with a row per inner node by level; slices of unrecorded arrays are views."""
    return [[array[i:j] for array in arrays] for i, j in zip(plan.starts, plan.starts[1:])]


def _rows(array, size):
    """Slice a parameter by gate."""
    return [array[start : start + size] for start in range(0, len(array), size)]
