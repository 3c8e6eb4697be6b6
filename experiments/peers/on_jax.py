"""JAX: programs that are compiled for padded shapes.

The tagger is a `jax.lax.scan` over padded sentences in each direction. The Tree-LSTM on pairs goes
level by level, and each level has room for as many nodes as any minibatch so far has needed.
"""

import os
import sys
from functools import partial

import numpy as np

# XLA reads its settings on import, so JAX must not be imported elsewhere before.
assert "jax" not in sys.modules
# It takes the number of its threads from the cores that the process may use.
COUNT = int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))
if COUNT == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:COUNT])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from baselines.levels import divide  # noqa: E402

from .child import EPSILON, Peer  # noqa: E402

#: Sentences and levels are padded to a multiple, so that there are few programs to compile.
STEPS, ROWS = 8, 32


@partial(jax.jit, static_argnums=(0, 1, 2, 6), donate_argnums=(3, 4))
def update(loss, rate, decay, p, history, embedding, static, *arrays):
    """Train on a minibatch: return new parameters, history and the loss."""
    value, gradients = jax.value_and_grad(loss)(p, embedding, static, *arrays)
    history = {name: history[name] + gradients[name] ** 2 for name in p}
    p = {
        name: w - rate * (gradients[name] / jnp.sqrt(history[name] + EPSILON) + decay * w)
        for name, w in p.items()
    }
    return p, history, value


class JaxPeer(Peer):
    """A model of functions ``scores`` and ``loss`` of parameters, vectors and padded arrays.

    A subclass has ``padded(batch)``, which returns what a program is compiled for, and the arrays;
    and ``kept(values, arrays)``, which returns the results without the padding.
    """

    version = f"JAX {jax.__version__}"
    flags = f"cores {COUNT}, jit"

    def __init__(self, task):
        parameters = dict(task.parameters)
        self.embedding = jnp.asarray(parameters.pop("embedding.weight"))
        self.first = parameters
        self.options = task.learning_rate, task.weight_decay
        self.history = {name: jnp.zeros_like(value) for name, value in parameters.items()}
        self.forward = jax.jit(type(self).scores, static_argnums=2)
        self.compiled, self.pending = set(), None
        self.reset()
        super().__init__(task)

    def start(self, batch):
        """Start a step of training; return its loss, which may not have been computed yet."""
        static, arrays = self.padded(batch)
        self.p, self.history, value = update(
            type(self).loss, *self.options, self.p, self.history, self.embedding, static, *arrays
        )
        return value

    def step(self, batch):
        """Train on a minibatch; return the loss of the one before, which has been computed."""
        previous, self.pending = self.pending, self.start(batch)
        return None if previous is None else float(previous)

    def finish(self):  # noqa: D102
        self.pending = None
        jax.block_until_ready(self.p)

    def predict(self, batch):  # noqa: D102
        static, arrays = self.padded(batch)
        values = self.forward(self.p, self.embedding, static, *arrays)
        return self.kept(np.asarray(values), *arrays)

    # Answers are lists, because the parent has a NumPy that cannot read arrays of this one.

    def check(self, work):  # noqa: D102
        batches = self.batches(work)
        values = self.predict(batches[0]).tolist()
        return {"values": values, "losses": [float(self.start(batch)) for batch in batches]}

    def gradients(self, numbers):
        """Return the gradients of the loss of a minibatch, by the names of parameters."""
        static, arrays = self.padded(*self.batches([numbers]))
        found = jax.grad(type(self).loss)(self.p, self.embedding, static, *arrays)
        return {name: value.tolist() for name, value in found.items()}

    def compile(self, kind, batches):  # noqa: D102
        run = self.predict if kind == "inference" else self.start
        for batch in batches:
            self.padded(batch)  # room for all, before anything is compiled
        for batch in batches:
            static, arrays = self.padded(batch)
            shape = kind, static, *(each.shape for each in arrays)
            if shape not in self.compiled:
                self.compiled.add(shape)
                run(batch)

    def reset(self):  # noqa: D102
        self.p = {name: jnp.array(value) for name, value in self.first.items()}


def lstm(p, side, vectors, mask, reverse):
    """Run an LSTM over vectors, shape (T, N, D); padded steps leave a state of zeros."""
    weight = {name: p[f"{side}.{name}_weight"].T for name in ("i2h", "h2h")}
    gates = vectors @ weight["i2h"] + (p[f"{side}.i2h_bias"] + p[f"{side}.h2h_bias"])

    def step(states, inputs):
        h, c = states
        x, kept = inputs
        i, f, u, o = jnp.split(x + h @ weight["h2h"], 4, axis=1)
        c = (jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)) * kept
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((vectors.shape[1], weight["h2h"].shape[0]), vectors.dtype)
    return jax.lax.scan(step, (start, start), (gates, mask[..., None]), reverse=reverse)[1]


class Tagger(JaxPeer):
    """Pads each minibatch to its longest sentence, rounded up, and masks the padding."""

    flags = f"{JaxPeer.flags}, lax.scan, padded to multiples of {STEPS} words"

    def scores(p, embedding, static, words, mask, tags=None):
        """Score the tags of all words; from shape (T, N) to (T, N, tags)."""
        vectors = embedding[words]
        sides = (("forwards", False), ("backwards", True))
        states = [lstm(p, side, vectors, mask, reverse) for side, reverse in sides]
        return jnp.concatenate(states, axis=-1) @ p["score.weight"].T + p["score.bias"]

    def loss(p, embedding, static, words, mask, tags):
        """Compute the mean over sentences of the mean loss of their words."""
        logs = jax.nn.log_softmax(Tagger.scores(p, embedding, static, words, mask))
        losses = -jnp.take_along_axis(logs, tags[..., None], axis=-1)[..., 0] * mask
        return (losses.sum(0) / mask.sum(0)).mean()

    def prepare(self, sample):  # noqa: D102
        (words,), tags = sample
        return np.array(words, np.int32), np.array(tags, np.int32)

    def padded(self, batch):
        """Lay a minibatch out as words, mask and tags, shape (T, N) each."""
        lengths = np.array([len(words) for words, _ in batch])
        steps = -(-lengths.max() // STEPS) * STEPS
        mask = np.arange(steps) < lengths[:, None]
        both = np.zeros((2, len(batch), steps), np.int32)
        for rows, parts in zip(both, zip(*batch)):
            rows[mask] = np.concatenate(parts)
        words, tags = both.transpose(0, 2, 1)
        return None, (words, mask.T.astype(np.float32), tags)

    def kept(self, values, words, mask, tags):  # noqa: D102
        return values.swapaxes(0, 1)[mask.T > 0]


def states_of(gates, c_sum=0.0):
    """Compute states h and c from three gates, and from the sum of forget gate times c."""
    i, o, u = jnp.split(gates, 3, axis=1)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + c_sum
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


class Pairs(JaxPeer):
    """Goes level by level; rows beyond the nodes of a level have no parent."""

    flags = f"{JaxPeer.flags}, levels padded to multiples of {ROWS} nodes"

    def scores(p, embedding, rooms, words, parents, targets=None):
        """Compute log-probabilities of the scores, shape (N, CLASSES).

        `rooms` are the numbers of rows of each level, and of the leaves.
        """
        *rooms, leaves = rooms
        starts = np.cumsum([0, *rooms])
        cell = {name: p[f"encoder.cell.{name}"] for name in ("i2h_weight", "i2h_bias")}
        x = embedding[words] @ cell["i2h_weight"].T + cell["i2h_bias"]
        hidden = x.shape[1] // 4
        h2h, hf = p["encoder.cell.h2h_weight"].T, p["encoder.cell.hf_weight"].T

        def passed(h, c, forgets, above, room):
            """Sum the states of children for each of `room` parents; others are dropped."""
            gate = jax.nn.sigmoid(forgets.at[above].get(mode="clip") + h @ hf)
            both = jnp.concatenate([h, gate * c], axis=1)
            return jnp.zeros((room, 2 * hidden), h.dtype).at[above].add(both, mode="drop")

        forgets, rests = x[:, :hidden], x[:, hidden:]
        inner = starts[-1]
        h, c = states_of(rests[inner:])
        sums = passed(h, c, forgets[:inner], parents[inner:], inner)
        below = 0.0
        for level in reversed(range(len(rooms))):
            rows = slice(starts[level], starts[level + 1])
            h_sum, c_sum = jnp.split(sums[rows] + below, 2, axis=1)
            h, c = states_of(rests[rows] + h_sum @ h2h, c_sum)
            if level:
                first, room = starts[level - 1], rooms[level - 1]
                heads = forgets[first : first + room]
                below = passed(h, c, heads, parents[rows] - first, room)
        left, right = jnp.split(h, 2)
        angle = (left * right) @ p["similarity.angle_weight"].T + p["similarity.hidden_bias"]
        distance = jnp.abs(left - right) @ p["similarity.distance_weight"].T
        scores = jax.nn.sigmoid(angle + distance) @ p["similarity.score_weight"].T
        return jax.nn.log_softmax(scores + p["similarity.score_bias"])

    def loss(p, embedding, rooms, words, parents, targets):
        """Compute the mean divergence of the scores from the targets."""
        scores = Pairs.scores(p, embedding, rooms, words, parents)
        return (jax.scipy.special.xlogy(targets, targets) - targets * scores).sum() / len(targets)

    def __init__(self, task):
        self.rooms = {}  # of each level from the root, and of the leaves, by size of minibatches
        super().__init__(task)

    def prepare(self, sample):  # noqa: D102
        (left, left_tree, right, right_tree), (target,) = sample
        return np.array(left), left_tree.heads, np.array(right), right_tree.heads, target

    def padded(self, batch):
        """Lay a minibatch out: words and parents of all rows, inner nodes by level, then leaves."""
        left, left_heads, right, right_heads, targets = zip(*batch)
        levels = divide(left_heads + right_heads)
        starts = np.array(levels.starts)
        inner, sizes = starts[-1], np.diff(starts)
        leaves = len(levels.words) - inner
        rooms = self._room(len(batch), sizes, leaves)
        first = np.cumsum([0, *rooms])
        rows = np.arange(len(levels.words))
        shifts = first[: len(sizes)] - starts[:-1]
        rows[:inner] += np.repeat(shifts, sizes)
        rows[inner:] += first[-2] - inner
        words = np.zeros(first[-1], np.int32)
        words[rows] = np.concatenate(left + right)[levels.words]
        parents = np.full(first[-1], first[-1], np.int32)
        parents[rows[sizes[0] :]] = rows[levels.parents[sizes[0] :]]
        return tuple(rooms), (words, parents, np.array(targets, np.float32))

    def _room(self, count, sizes, leaves):
        """Return rows of each level and for leaves; all roots are level 0, without padding."""
        known = self.rooms.setdefault(count, [2 * count, ROWS])
        *levels, last = known
        levels += [0] * (len(sizes) - len(levels))
        needed = [*sizes, *[0] * (len(levels) - len(sizes)), leaves]
        rounded = [-(-each // ROWS) * ROWS for each in needed]
        rounded[0] = 2 * count
        known[:] = map(int, map(max, [*levels, last], rounded))
        return known

    def kept(self, values, *arrays):  # noqa: D102
        return values
