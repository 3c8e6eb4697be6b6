"""Train a module network (Andreas et al. 2016, arXiv:1511.02799): a network for every question."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

import arguments
import gluon_dynbatch as gdb

CONCEPTS = ("red", "green", "blue", "cube", "ball")
SIDE = 3  # scenes are grids of SIDE x SIDE objects: (1, len(CONCEPTS), SIDE, SIDE)


class ModuleNetwork(gdb.DynamicHybridBlock):
    """Counts objects; a program is the number of a concept, ("not", p) or ("and", p, q)."""

    def __init__(self):
        super().__init__()
        self.find = nn.HybridSequential()
        for _ in CONCEPTS:  # scene -> attention (1, 1, SIDE, SIDE)
            self.find.add(nn.Conv2D(1, 1, activation="sigmoid", in_channels=len(CONCEPTS)))

    def forward(self, scene, program):  # noqa: D102
        return self.attend(scene, program).sum(axis=(1, 2, 3))  # (1,)

    def attend(self, scene, program):
        """Return the attention that a program computes."""
        if isinstance(program, int):
            return self.find[program](scene)
        parts = [self.attend(scene, part) for part in program[1:]]
        return 1 - parts[0] if program[0] == "not" else parts[0] * parts[1]


def make_program(rng, scene, depth=4):
    """Draw a program; return it, and a mask of the objects that it selects in the scene."""
    if not depth or rng.rand() < 0.2:
        concept = rng.randint(len(CONCEPTS))
        return concept, scene[:, concept] > 0
    (p, in_p), (q, in_q) = (make_program(rng, scene, depth - 1) for _ in range(2))
    return (("not", p), ~in_p) if rng.rand() < 0.5 else (("and", p, q), in_p & in_q)


def make_sample(rng):
    """Draw a scene, a program and the right count."""
    colours, shapes = (np.eye(n)[rng.randint(n, size=SIDE**2)] for n in (3, 2))
    scene = np.concatenate([colours, shapes], axis=1).T.reshape(1, len(CONCEPTS), SIDE, SIDE)
    program, mask = make_program(rng, scene)
    return mx.nd.array(scene), program, mx.nd.array([mask.sum()])


def main(argv=None):
    """Train for some epochs, then compare values and gradients with those of the loop."""
    args = arguments.read(__doc__, argv, epochs=20)
    samples = [make_sample(np.random.RandomState(seed)) for seed in range(256)]
    net, loss_fn = ModuleNetwork(), gluon.loss.L2Loss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.3})
    for epoch in range(args.epochs):
        with autograd.record(), gdb.batching(args.analysis_budget) as batch:
            losses = [loss_fn(net(scene, program), count) for scene, program, count in samples]
        autograd.backward(losses)
        trainer.step(len(losses))
        loss = mx.nd.concat(*losses, dim=0).mean().asscalar()
        print(f"epoch {epoch}: loss {loss:.3f}; {batch.report.flushes[-1].line}")
    gdb.testing.check_against_loop(lambda s: net(*s[:2]), samples, net.collect_params().values())
    print("values and gradients equal those of the loop")


if __name__ == "__main__":
    main()
