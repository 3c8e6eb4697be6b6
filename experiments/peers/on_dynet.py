"""DyNet: models written for one sample, node by node, and batched by DyNet."""

import math
import sys
from importlib.metadata import version

import dynet_config
import numpy as np

# DyNet reads its settings on import, so it must not be imported elsewhere before.
assert "dynet" not in sys.modules
dynet_config.set(autobatch=1, mem=1024, random_seed=1)

import dynet as dy  # noqa: E402

from relatedness.trees import phrases_of  # noqa: E402

from .child import EPSILON, Peer  # noqa: E402

SIDES = ("forwards", "backwards")


class DynetPeer(Peer):
    """A model of expressions, with parameters in ``self.p`` by name.

    A subclass has ``scores(batch)``, the results of a minibatch as one batched expression, and
    ``loss(batch)``, the mean of the losses of its samples.
    """

    flags = "--dynet-autobatch 1"

    def __init__(self, task):
        self.version = f"DyNet {version('dyNET38')}"
        self.model = dy.ParameterCollection()
        self.first = {name: v for name, v in task.parameters.items() if name != "embedding.weight"}
        self.p = {name: self.model.parameters_from_numpy(v) for name, v in self.first.items()}
        self.words = self.model.lookup_parameters_from_numpy(task.parameters["embedding.weight"])
        self.model.set_weight_decay_lambda(task.learning_rate * task.weight_decay)
        self.trainer = dy.AdagradTrainer(self.model, learning_rate=task.learning_rate, eps=EPSILON)
        self.trainer.set_clip_threshold(0)
        super().__init__(task)

    def vector(self, word):
        """Look up a word's vector, which is not trained."""
        return dy.lookup(self.words, word, update=False)

    def affine(self, bias, *terms):
        """Add products to a bias; `terms` alternate between names of weights and vectors."""
        terms = (self.p[term] if isinstance(term, str) else term for term in terms)
        return dy.affine_transform([self.p[bias], *terms])

    def predict(self, batch):  # noqa: D102
        dy.renew_cg()
        scores = self.scores(batch)
        return scores.npvalue().reshape(scores.dim()[0][0], -1).T

    def step(self, batch):  # noqa: D102
        dy.renew_cg()
        loss = self.loss(batch)
        value = loss.value()
        loss.backward()
        self.trainer.update()
        return value

    def reset(self):  # noqa: D102
        dy.renew_cg()
        weight = next(iter(self.p.values()))
        # DyNet implements weight decay by a common factor of all weights.
        factor = abs(weight.npvalue()).max() / abs(weight.as_array()).max()
        for name, value in self.first.items():
            self.p[name].set_value(value / factor)


def states_of(i, o, u, *terms):
    """Compute states h and c from gates, and `terms` of c from other nodes."""
    c = dy.cmult(dy.logistic(i), dy.tanh(u))
    if terms:
        c = dy.esum([c, *terms])
    return dy.cmult(dy.logistic(o), dy.tanh(c)), c


def split(x, count):
    """Split a vector into equal parts."""
    size = x.dim()[0][0] // count
    return [dy.pick_range(x, i * size, (i + 1) * size) for i in range(count)]


class Pairs(DynetPeer):
    """The Tree-LSTM node by node; the head runs on all roots of a minibatch at once."""

    def __init__(self, task):
        # Forget gates are separate, because only nodes with children need them.
        parameters = dict(task.parameters)
        for name in ("weight", "bias"):
            value = parameters.pop(f"encoder.cell.i2h_{name}")
            parts = np.split(value, [len(value) // 4])
            parameters[f"forget_{name}"], parameters[f"rest_{name}"] = parts
        super().__init__(task._replace(parameters=parameters))

    def prepare(self, sample):  # noqa: D102
        inputs, (target,) = sample
        return inputs, target, sum(t * math.log(t) for t in target if t)

    def node(self, word, children):
        """Compute the states of a word from those of its children."""
        p, x = self.p, self.vector(word)
        terms = [p["rest_bias"], p["rest_weight"], x]
        if children:
            h_sum = dy.esum([h for h, _ in children]) if len(children) > 1 else children[0][0]
            terms += [p["encoder.cell.h2h_weight"], h_sum]
        gates = split(dy.affine_transform(terms), 3)
        if not children:
            return states_of(*gates)
        x_forget = dy.affine_transform([p["forget_bias"], p["forget_weight"], x])
        forgets = [x_forget + p["encoder.cell.hf_weight"] * h for h, _ in children]
        terms_of_c = (dy.cmult(dy.logistic(g), c) for g, (_, c) in zip(forgets, children))
        return states_of(*gates, *terms_of_c)

    def root(self, words, tree):
        """Compute the state h of a sentence."""
        states = [None] * len(words)
        for i in tree.order:
            states[i] = self.node(words[i], [states[k] for k in tree.children[i]])
        return states[tree.root][0]

    def scores(self, batch):
        """Compute log-probabilities of the scores, shape (CLASSES,), batched."""
        left, right = (
            dy.concatenate_to_batch([self.root(*sample[0][k : k + 2]) for sample in batch])
            for k in (0, 2)
        )
        angle = "similarity.angle_weight", dy.cmult(left, right)
        distance = "similarity.distance_weight", dy.abs(left - right)
        hidden = dy.logistic(self.affine("similarity.hidden_bias", *angle, *distance))
        scores = self.affine("similarity.score_bias", "similarity.score_weight", hidden)
        return dy.log_softmax(scores)

    def loss(self, batch):  # noqa: D102
        _, targets, entropies = zip(*batch)
        targets = np.array(targets).T
        products = dy.dot_product(dy.inputTensor(targets, batched=True), self.scores(batch))
        return (dy.sum_batches(products) - sum(entropies)) * (-1 / len(batch))


class Labels(DynetPeer):
    """Models that score labels, the last part of a sample, from ``states(sample)``, one each."""

    def scores(self, batch):  # noqa: D102
        states = [state for sample in batch for state in self.states(sample)]
        return self.affine("score.bias", "score.weight", dy.concatenate_to_batch(states))

    def loss(self, batch):  # noqa: D102
        labels = [label for sample in batch for label in sample[-1]]
        weights = [1 / (len(s[-1]) * len(batch)) for s in batch for _ in s[-1]]
        losses = dy.pickneglogsoftmax_batch(self.scores(batch), labels)
        return dy.sum_batches(dy.cmult(losses, dy.inputTensor(np.array([weights]), batched=True)))


class Tagger(Labels):
    """Word by word; the states of all words of a minibatch are scored at once."""

    # MXNet's cell has two biases; DyNet's has one, which a step of AdaGrad moves half as far.
    same_steps = 1

    def __init__(self, task):
        parameters = dict(task.parameters)
        for side in SIDES:
            biases = [parameters.pop(f"{side}.{name}_bias") for name in ("i2h", "h2h")]
            parameters[f"{side}.bias"] = sum(biases)
        super().__init__(task._replace(parameters=parameters))

    def prepare(self, sample):  # noqa: D102
        (words,), labels = sample
        return words, list(map(int, labels))

    def read(self, side, vectors):
        """Compute states h of the words of a sentence, in reading order."""
        p = self.p
        weights = [p[f"{side}.{name}"] for name in ("bias", "i2h_weight", "h2h_weight")]
        states, c = [], None
        for x in vectors:
            terms = [*weights[:2], x, weights[2], states[-1]] if states else [*weights[:2], x]
            i, f, u, o = split(dy.affine_transform(terms), 4)
            h, c = states_of(i, o, u, *([] if c is None else [dy.cmult(dy.logistic(f), c)]))
            states.append(h)
        return states

    def states(self, sample):  # noqa: D102
        vectors = [self.vector(word) for word in sample[0]]
        ahead = self.read("forwards", vectors)
        back = self.read("backwards", vectors[::-1])
        return [dy.concatenate([a, b]) for a, b in zip(ahead, back[::-1])]


class NodeTagger(Tagger):
    """The same with ``CompactVanillaLSTMBuilder``; a step is three operations of DyNet."""

    flags = f"{Tagger.flags}, CompactVanillaLSTMBuilder"

    def __init__(self, task):
        super().__init__(task)
        gates, size = self.first["forwards.i2h_weight"].shape
        self.builders = {
            side: dy.CompactVanillaLSTMBuilder(1, size, gates // 4, self.model) for side in SIDES
        }
        for side, builder in self.builders.items():
            names = [f"{side}.{name}" for name in ("i2h_weight", "h2h_weight", "bias")]
            self.p.update(zip(names, *builder.get_parameters()))
            for name in names:  # a builder has gates in the order i, f, o, u, and adds 1 to f
                i, f, u, o = np.split(self.first[name], 4)
                self.first[name] = np.concatenate([i, f - 1 if f.ndim == 1 else f, o, u])
                self.p[name].set_value(self.first[name])

    def read(self, side, vectors):  # noqa: D102
        return self.builders[side].initial_state().transduce(vectors)


class Trees(Labels):
    """Node by node; the states of all phrases of a minibatch are scored at once."""

    def prepare(self, sample):
        """List the phrases in post-order: a word, or a pair of numbers of phrases."""
        (words, shape), labels = sample
        phrases = [words[p] if isinstance(p, int) else p for p in phrases_of(shape)]
        return phrases, list(map(int, labels))

    def states(self, sample):  # noqa: D102
        names = ("leaf.gates.bias", "leaf.gates.weight", "join.gates.bias", "join.gates.weight")
        weights = [self.p[name] for name in names]
        states = []
        for parts in sample[0]:
            if isinstance(parts, int):
                gates = dy.affine_transform([*weights[:2], self.vector(parts)])
                states.append(states_of(*split(gates, 3)))
            else:
                children = [states[k] for k in parts]
                x = dy.concatenate([h for h, _ in children])
                i, *forgets, o, u = split(dy.affine_transform([*weights[2:], x]), 5)
                terms = (dy.cmult(dy.logistic(f), c) for f, (_, c) in zip(forgets, children))
                states.append(states_of(i, o, u, *terms))
        return [h for h, _ in states]
