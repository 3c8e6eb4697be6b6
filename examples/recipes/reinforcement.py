"""REINFORCE (Williams 1992): episodes in a world of plain Python; each draws its own actions."""

import random

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

import gluon_dynbatch as gdb

SIZE, STEPS, BASELINE = 5, 12, 0.2
FIELDS = [(x, y) for x in range(SIZE) for y in range(SIZE)]
MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1))


class Policy(gluon.HybridBlock):  # a cell: log probabilities of the moves
    def __init__(self, size):
        super().__init__()
        self.hidden = nn.Dense(size, in_units=4, activation="tanh")
        self.score = nn.Dense(len(MOVES), in_units=size)

    def hybrid_forward(self, F, place):  # (1, 4) -> (1, 4)
        return F.log_softmax(self.score(self.hidden(place)))


def episode(seed):  # a walk from one field of a board to another -> loss, reward
    draw = random.Random(seed)  # each sample has a generator of its own
    (x, y), goal = draw.sample(FIELDS, 2)
    chosen = []
    while len(chosen) < STEPS and (x, y) != goal:
        logs = policy(mx.nd.array([[x, y, *goal]]) / SIZE)
        weights = logs.exp().asnumpy()[0]  # reads: here, all episodes wait for each other
        (move,) = draw.choices(range(len(MOVES)), weights.tolist())
        x = min(max(x + MOVES[move][0], 0), SIZE - 1)
        y = min(max(y + MOVES[move][1], 0), SIZE - 1)
        chosen.append(logs[0, move])
    reward = 1 - len(chosen) / STEPS
    return (BASELINE - reward) * mx.nd.add_n(*chosen), reward


policy = gdb.convert(Policy(32))
policy.initialize(mx.init.Xavier())
policy.hybridize()
trainer = gluon.Trainer(policy.collect_params(), "adam", {"learning_rate": 0.02})
for start in range(0, 640, 64):
    with autograd.record(), gdb.batching() as batch:
        losses, rewards = zip(*batch.map(episode, range(start, start + 64)))
    autograd.backward(losses)
    trainer.step(len(losses))
    print(f"reward {sum(rewards) / len(rewards):.2f}")
print(batch.report)
