"""Programs of `mx.np`: attention over sets of any size, without padding and masks."""

import numpy
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

import gluon_dynbatch as gdb

npx.set_np()


class Attention(gluon.HybridBlock):  # a cell: every element looks at every other one
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.project = nn.Dense(3 * size, flatten=False, in_units=size, use_bias=False)

    def hybrid_forward(self, F, x):  # (elements, size) -> (elements, size)
        queries, keys, values = F.np.split(self.project(x), 3, axis=1)
        weights = F.npx.softmax(F.np.dot(queries, keys.T) / self.size**0.5)
        return x + F.np.dot(weights, values)


class Oldest(gluon.HybridBlock):  # of which kind is the oldest element?
    def __init__(self, size):
        super().__init__()
        self.inputs = nn.Dense(size, flatten=False, in_units=4, activation="relu")
        self.layers = nn.HybridSequential()
        self.layers.add(Attention(size), nn.LayerNorm(in_channels=size), Attention(size))
        self.score = nn.Dense(3, in_units=size)

    def hybrid_forward(self, F, elements):  # (elements, 4) -> (1, 3)
        states = self.layers(self.inputs(elements))
        return self.score(F.np.max(states, axis=0, keepdims=True))


def sample(draw):  # elements of three kinds, each with its age
    count = draw.randint(2, 12)
    kinds, ages = draw.randint(0, 3, count), draw.rand(count, 1)
    elements = numpy.concatenate([numpy.eye(3)[kinds], ages], axis=1)
    return np.array(elements, dtype="float32"), np.array([kinds[ages.argmax()]])


samples = [sample(numpy.random.RandomState(seed)) for seed in range(64)]
net, loss_fn = gdb.convert(Oldest(32)), gluon.loss.SoftmaxCELoss()
net.initialize(init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for _ in range(10):
    with autograd.record(), gdb.batching() as batch:
        losses = [loss_fn(net(elements), label) for elements, label in samples]
    autograd.backward(losses)
    trainer.step(len(losses))
print(batch.report)
