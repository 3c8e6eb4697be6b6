"""Parse sentences greedily with stack LSTMs: computed scores decide what is computed next.

The parser is that of Dyer et al. (2015, arXiv:1505.08075), without labels.  In the language it
learns every word has a strength, and its head is the weaker of the two nearest stronger words.
"""

import argparse
import time

import mxnet as mx
import numpy as np
from mxnet.gluon import Trainer, loss, nn, rnn

import gluon_dynbatch as gdb

WORDS, WIDTH = 20, 64
SHIFT, LEFT, RIGHT = range(3)
ROOT = -1


class Read(gdb.DynamicHybridBlock):
    """One step of an LSTM."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.lstm = rnn.LSTMCell(WIDTH, input_size=WIDTH)

    def hybrid_forward(self, F, x, h, c):
        _, (h, c) = self.lstm(x, [h, c])
        return h, c


class Pair(gdb.DynamicHybridBlock):
    """Two vectors to one: the composition of a word with its head, or scores of actions."""

    def __init__(self, hidden, units, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.hidden = nn.Dense(hidden, activation="tanh", in_units=2 * WIDTH)
            self.out = nn.Dense(units, in_units=hidden)

    def hybrid_forward(self, F, one, other):
        return self.out(self.hidden(F.concat(one, other, dim=1)))


class Parser(gdb.DynamicHybridBlock):
    """An arc-standard parser of one sentence."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.stack, self.buffer = Read(), Read()
            self.compose, self.score = Pair(WIDTH, WIDTH), Pair(WIDTH, 3)

    def forward(self, words, actions=None):
        """Return heads and scores; `actions` are taken instead of the best ones."""
        zero = mx.nd.zeros((1, WIDTH))
        vectors = [self.embedding(word) for word in words]
        waiting = [(zero, zero)]
        for vector in reversed(vectors):
            waiting.append(self.buffer(vector, *waiting[-1]))
        heads, stack, states, scores = [ROOT] * len(words), [], [(zero, zero)], []
        while len(waiting) > 1 or len(stack) > 1:
            scores.append(self.score(states[-1][0], waiting[-1][0]))
            possible = [len(waiting) > 1, len(stack) > 1, len(stack) > 1]
            if actions is None:
                # Here a value decides what comes next.
                action = int(np.where(possible, scores[-1].asnumpy()[0], -np.inf).argmax())
            else:
                action = actions[len(scores) - 1]
            if action == SHIFT:
                number = len(words) - len(waiting) + 1
                top = number, vectors[number]
                waiting.pop()
            else:
                (low, one), (high, other) = stack.pop(-2), stack.pop()
                del states[-2:]
                head, child = ((high, other), (low, one))[:: 1 if action == LEFT else -1]
                heads[child[0]] = head[0]
                top = head[0], self.compose(head[1], child[1])
            stack.append(top)
            states.append(self.stack(top[1], *states[-1]))
        return heads, scores


def heads_of(strengths):
    """Return the head of each word; the strongest has none."""

    def first_stronger(numbers, strength):
        return next((n for n in numbers if strengths[n] > strength), None)

    heads = []
    for i, strength in enumerate(strengths):
        near = first_stronger(range(i - 1, -1, -1), strength)
        far = first_stronger(range(i + 1, len(strengths)), strength)
        found = [n for n in (near, far) if n is not None]
        heads.append(min(found, key=lambda n: strengths[n], default=ROOT))
    return heads


def actions_of(heads):
    """Return the actions that build a tree: children go as soon as they have all of theirs."""
    missing = [heads.count(i) for i in range(len(heads))]
    stack, coming, actions = [], list(range(len(heads))), []
    while coming or len(stack) > 1:
        low, high = stack[-2:] if len(stack) > 1 else (None, None)
        if low is not None and heads[low] == high and not missing[low]:
            actions.append(LEFT)
            stack.pop(-2)
            missing[high] -= 1
        elif low is not None and heads[high] == low and not missing[high]:
            actions.append(RIGHT)
            stack.pop()
            missing[low] -= 1
        else:
            actions.append(SHIFT)
            stack.append(coming.pop(0))
    return actions


def main(argv=None):
    """Train on known actions, then parse greedily: sentence by sentence, and all together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--analysis-budget", default="auto", metavar="MS")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=512)
    args = parser.parse_args(argv)
    mx.random.seed(1)
    rng = np.random.RandomState(1)
    strengths = [rng.permutation(WORDS)[: rng.randint(3, 12)] for _ in range(2 * args.sentences)]
    trees = [heads_of(sentence) for sentence in strengths]
    sentences = [[mx.nd.array([word]) for word in sentence] for sentence in strengths]
    net = Parser()
    net.initialize(mx.init.Xavier())
    net.hybridize(analysis_budget=args.analysis_budget)
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.005})
    criterion = loss.SoftmaxCrossEntropyLoss()

    def cost(words, actions):
        _, scores = net(words, actions)
        return criterion(mx.nd.concat(*scores, dim=0), mx.nd.array(actions)).sum()

    train = [(s, actions_of(t)) for s, t in zip(sentences, trees)][: args.sentences]
    for _ in range(args.epochs):
        for low in range(0, len(train), 32):
            with mx.autograd.record():
                losses = gdb.map(cost, train[low : low + 32])
            mx.autograd.backward(losses)
            trainer.step(32)
    test, wanted = sentences[args.sentences :], trees[args.sentences :]

    def one_by_one():
        return [net(words)[0] for words in test]

    def together():
        return [heads for heads, _ in gdb.map(net, test)]

    found = one_by_one()
    assert together() == found
    for parse in (one_by_one, together):
        started = time.perf_counter()
        parse()
        print(f"{parse.__name__:11}{len(test) / (time.perf_counter() - started):6.0f} sentences/s")
    right = sum(a == b for f, w in zip(found, wanted) for a, b in zip(f, w))
    print(f"{right / sum(map(len, wanted)):.1%} of the words have the right head")
    print("all parses equal those of the loop")


if __name__ == "__main__":
    main()
