"""Sample words letter by letter: each step reads the letter that was drawn before."""

import time

import mxnet as mx
import numpy as np
from mxnet.gluon import Trainer, loss, nn, rnn

import arguments
import gluon_dynbatch as gdb

LETTERS = " abcdefghijklmnopqrstuvwxyz"
VOWELS, WIDTH, LONGEST = "aeiou", 64, 12


class Step(gdb.DynamicHybridBlock):
    """Maps a letter and a state to scores of the next letter and the next state."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(len(LETTERS), WIDTH)
            self.lstm = rnn.LSTMCell(WIDTH, input_size=WIDTH)
            self.out = nn.Dense(len(LETTERS), in_units=WIDTH)

    def hybrid_forward(self, F, letter, h, c):
        """Return scores and the next state."""
        _, (h, c) = self.lstm(self.embedding(letter), [h, c])
        return self.out(h), h, c


def draw_word(step, seed, numbers):
    """Draw a word with its own random generator, so that the order of samples does not matter."""
    random = np.random.RandomState(seed)
    h, c = mx.nd.zeros((1, WIDTH)), mx.nd.zeros((1, WIDTH))
    word, letter = "", 0
    while len(word) < LONGEST:
        scores, h, c = step(numbers[letter], h, c)
        # A value decides which letter comes next.
        odds = np.exp(scores.asnumpy()[0].astype("float64"))
        letter = random.choice(len(LETTERS), p=odds / odds.sum())
        if letter == 0:
            break
        word += LETTERS[letter]
    return word


def example(random):
    """Draw a word in which consonants and vowels alternate."""
    consonants = [letter for letter in LETTERS[1:] if letter not in VOWELS]
    length = random.randint(3, 9)
    return "".join(random.choice(list(VOWELS) if i % 2 else consonants) for i in range(length))


def right(word):
    """Return whether consonants and vowels alternate in a word."""
    return bool(word) and all((c in VOWELS) == bool(i % 2) for i, c in enumerate(word))


def main(argv=None):
    """Train on words, then draw new ones: word by word, and all together."""
    args = arguments.read(__doc__, argv, epochs=10, words=256)
    mx.random.seed(1)
    random = np.random.RandomState(1)
    words = [example(random) for _ in range(args.words)]
    numbers = [mx.nd.array([i]) for i in range(len(LETTERS))]
    step = Step()
    step.initialize(mx.init.Xavier())
    step.hybridize(analysis_budget=args.analysis_budget)
    trainer = Trainer(step.collect_params(), "adam", {"learning_rate": 0.01})
    criterion = loss.SoftmaxCrossEntropyLoss()

    def cost(word):
        letters = [0, *map(LETTERS.index, word), 0]
        h, c = mx.nd.zeros((1, WIDTH)), mx.nd.zeros((1, WIDTH))
        scores = []
        for letter in letters[:-1]:
            letter_scores, h, c = step(numbers[letter], h, c)
            scores.append(letter_scores)
        return criterion(mx.nd.concat(*scores, dim=0), mx.nd.array(letters[1:])).sum()

    for _ in range(args.epochs):
        for low in range(0, len(words), 32):
            with mx.autograd.record():
                losses = gdb.map(cost, words[low : low + 32])
            mx.autograd.backward(losses)
            trainer.step(32)

    def one_by_one():
        return [draw_word(step, seed, numbers) for seed in range(args.words)]

    def together():
        return gdb.map(lambda seed: draw_word(step, seed, numbers), range(args.words))

    drawn = one_by_one()
    assert together() == drawn
    for draw in (one_by_one, together):
        started = time.perf_counter()
        draw()
        print(f"{draw.__name__:11}{args.words / (time.perf_counter() - started):6.0f} words/s")
    print(", ".join(drawn[:8]))
    print(f"{np.mean(list(map(right, drawn))):.0%} of the words are well formed")
    print("all words equal those of the loop")


if __name__ == "__main__":
    main()
