"""JAX: the tagger by `jax.lax.scan` over padded sentences, compiled for each padded length."""

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

from .child import EPSILON, Peer  # noqa: E402

#: Sentences are padded to a multiple of so many words, so that there are few programs to compile.
MULTIPLE = 8


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


def scores(p, embedding, words, mask):
    """Score the tags of all words; from shape (T, N) to (T, N, tags)."""
    vectors = embedding[words]
    sides = (("forwards", False), ("backwards", True))
    states = [lstm(p, side, vectors, mask, reverse) for side, reverse in sides]
    return jnp.concatenate(states, axis=-1) @ p["score.weight"].T + p["score.bias"]


def loss(p, embedding, words, mask, tags):
    """Compute the mean over sentences of the mean loss of their words."""
    logs = jax.nn.log_softmax(scores(p, embedding, words, mask))
    losses = -jnp.take_along_axis(logs, tags[..., None], axis=-1)[..., 0] * mask
    return (losses.sum(0) / mask.sum(0)).mean()


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def update(rate, decay, p, history, embedding, words, mask, tags):
    """Train on a minibatch: return new parameters, history and the loss."""
    value, gradients = jax.value_and_grad(loss)(p, embedding, words, mask, tags)
    history = {name: history[name] + gradients[name] ** 2 for name in p}
    p = {
        name: w - rate * (gradients[name] / jnp.sqrt(history[name] + EPSILON) + decay * w)
        for name, w in p.items()
    }
    return p, history, value


class Tagger(Peer):
    """Pads each minibatch to its longest sentence, rounded up, and masks the padding."""

    version = f"JAX {jax.__version__}"
    flags = f"cores {COUNT}, jit, lax.scan, padded to multiples of {MULTIPLE}"

    def __init__(self, task):
        parameters = dict(task.parameters)
        self.embedding = jnp.asarray(parameters.pop("embedding.weight"))
        self.first = parameters
        self.options = task.learning_rate, task.weight_decay
        self.history = {name: jnp.zeros_like(value) for name, value in parameters.items()}
        self.scores, self.compiled, self.pending = jax.jit(scores), set(), None
        self.reset()
        super().__init__(task)

    def prepare(self, sample):  # noqa: D102
        (words,), tags = sample
        return np.array(words, np.int32), np.array(tags, np.int32)

    def padded(self, batch):
        """Lay a minibatch out as words, mask and tags, shape (T, N) each."""
        lengths = np.array([len(words) for words, _ in batch])
        steps = -(-lengths.max() // MULTIPLE) * MULTIPLE
        mask = np.arange(steps) < lengths[:, None]
        both = np.zeros((2, len(batch), steps), np.int32)
        for rows, parts in zip(both, zip(*batch)):
            rows[mask] = np.concatenate(parts)
        words, tags = both.transpose(0, 2, 1)
        return words, mask.T.astype(np.float32), tags

    def start(self, batch):
        """Start a step of training; return its loss, which may not have been computed yet."""
        arguments = *self.options, self.p, self.history, self.embedding, *self.padded(batch)
        self.p, self.history, value = update(*arguments)
        return value

    def step(self, batch):
        """Train on a minibatch; return the loss of the one before, which has been computed."""
        previous, self.pending = self.pending, self.start(batch)
        return None if previous is None else float(previous)

    def finish(self):  # noqa: D102
        self.pending = None
        jax.block_until_ready(self.p)

    # Answers are lists, because the parent has a NumPy that cannot read arrays of this one.

    def check(self, work):  # noqa: D102
        batches = self.batches(work)
        values = self.predict(batches[0]).tolist()
        return {"values": values, "losses": [float(self.start(batch)) for batch in batches]}

    def predict(self, batch):  # noqa: D102
        words, mask, _ = self.padded(batch)
        values = np.asarray(self.scores(self.p, self.embedding, words, mask))
        return values.swapaxes(0, 1)[mask.T > 0]

    def gradients(self, numbers):
        """Return the gradients of the loss of a minibatch, by the names of parameters."""
        (batch,) = self.batches([numbers])
        found = jax.grad(loss)(self.p, self.embedding, *self.padded(batch))
        return {name: value.tolist() for name, value in found.items()}

    def compile(self, kind, batches):  # noqa: D102
        run = self.predict if kind == "inference" else self.start
        for batch in batches:
            shape = kind, len(batch), self.padded(batch)[0].shape[0]
            if shape not in self.compiled:
                self.compiled.add(shape)
                run(batch)

    def reset(self):  # noqa: D102
        self.p = {name: jnp.array(value) for name, value in self.first.items()}
