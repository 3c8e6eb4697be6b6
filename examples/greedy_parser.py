"""Parse sentences greedily with stack LSTMs: computed scores decide what is computed next.

The parser is that of Dyer et al. (2015, arXiv:1505.08075), without labels. In its toy language,
every word has a strength, and its head is the weaker of the two nearest stronger words.
"""

import time

import mxnet as mx
import numpy as np
from mxnet.gluon import Trainer, loss, nn, rnn

import arguments
import gluon_dynbatch as gdb

WORDS, WIDTH = 20, 64
SHIFT, LEFT, RIGHT = range(3)


class Read(gdb.DynamicHybridBlock):
    """One step of an LSTM."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.lstm = rnn.LSTMCell(WIDTH, input_size=WIDTH)

    def hybrid_forward(self, F, x, h, c):
        """Return the next state."""
        return self.lstm(x, [h, c])[1]


class Pair(gdb.DynamicHybridBlock):
    """Maps two vectors to one: the composition of a word with its head, or scores of actions."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.hidden = nn.Dense(WIDTH, activation="tanh", in_units=2 * WIDTH)
            self.out = nn.Dense(units, in_units=WIDTH)

    def hybrid_forward(self, F, left, right):
        """Return the vector."""
        return self.out(self.hidden(F.concat(left, right, dim=1)))


class Parser(gdb.DynamicHybridBlock):
    """An arc-standard parser of one sentence."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding, self.stack, self.buffer = nn.Embedding(WORDS, WIDTH), Read(), Read()
            self.compose, self.score = Pair(WIDTH), Pair(3)

    def forward(self, words, strengths=None):
        """Return heads, actions and scores; with strengths, actions are those of the right tree."""
        zero = mx.nd.zeros((1, WIDTH))
        vectors = [self.embedding(word) for word in words]
        buffer = [(zero, zero)]
        for vector in reversed(vectors):
            buffer.append(self.buffer(vector, *buffer[-1]))
        heads, stack, states, actions, scores = [-1] * len(words), [], [(zero, zero)], [], []
        while len(buffer) > 1 or len(stack) > 1:
            next_word = len(words) - len(buffer) + 1
            scores.append(self.score(states[-1][0], buffer[-1][0]))
            if strengths is None:
                # A value decides which action comes next.
                possible = [len(buffer) > 1, len(stack) > 1, len(stack) > 1]
                action = int(np.where(possible, scores[-1].asnumpy()[0], -np.inf).argmax())
            else:
                action = right_action([i for i, _ in stack], next_word, strengths)
            actions.append(action)
            if action == SHIFT:
                stack.append((next_word, vectors[next_word]))
                buffer.pop()
            else:
                child, head = (-2, -1) if action == LEFT else (-1, -2)
                (child, below), (head, above) = stack[child], stack[head]
                heads[child] = head
                stack[-2:] = [(head, self.compose(above, below))]
                del states[-2:]
            states.append(self.stack(stack[-1][1], *states[-1]))
        return heads, actions, scores


def right_action(stack, next_word, strengths):
    """Return the action that leads to the right tree."""
    following = strengths[next_word] if next_word < len(strengths) else WORDS
    low, high = [WORDS + 1, *(strengths[i] for i in stack)][-2:] if stack else (WORDS, WORDS)
    if low < high and len(stack) > 1:
        return LEFT
    return RIGHT if high < following and low < following else SHIFT


def main(argv=None):
    """Train on right actions, then parse greedily: sentence by sentence, and all together."""
    args = arguments.read(__doc__, argv, epochs=10, sentences=512)
    mx.random.seed(1)
    rng = np.random.RandomState(1)
    strengths = [rng.permutation(WORDS)[: rng.randint(3, 12)] for _ in range(2 * args.sentences)]
    sentences = [([mx.nd.array([word]) for word in each], each.tolist()) for each in strengths]
    train, test = sentences[: args.sentences], sentences[args.sentences :]
    net, criterion = Parser(), loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize(analysis_budget=args.analysis_budget)
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.005})

    def cost(words, strengths):
        _, actions, scores = net(words, strengths)
        return criterion(mx.nd.concat(*scores, dim=0), mx.nd.array(actions)).sum()

    for _ in range(args.epochs):
        for low in range(0, len(train), 32):
            with mx.autograd.record():
                losses = gdb.map(cost, train[low : low + 32])
            mx.autograd.backward(losses)
            trainer.step(32)

    def one_by_one():
        return [net(words)[0] for words, _ in test]

    def together():
        return [heads for heads, _, _ in gdb.map(lambda pair: net(pair[0]), test)]

    parses, expected = one_by_one(), [net(*pair)[0] for pair in test]
    assert together() == parses
    for parse in (one_by_one, together):
        started = time.perf_counter()
        parse()
        print(f"{parse.__name__:11}{len(test) / (time.perf_counter() - started):6.0f} sentences/s")
    right = sum(a == b for heads, true in zip(parses, expected) for a, b in zip(heads, true))
    print(f"{right / sum(map(len, expected)):.1%} of the words have the right head")
    print("all parses equal those of the loop")


if __name__ == "__main__":
    main()
