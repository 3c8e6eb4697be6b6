"""Random training programs: scopes and backward passes in any order, compared with the loop."""

import contextlib

import mxnet as mx
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from mxnet import autograd

import gluon_dynbatch as gdb
from tests.cells import cell, equal
from tests.common import FIXED
from tests.depth import examples

NET = cell(lambda F, x, w: F.tanh(F.FullyConnected(x, w, num_hidden=3, no_bias=True)))
NUMBERS = st.integers(0, 9)
STEPS = [
    *("scope", "scope", "chained", "failing", "backward", "backward", "backward", "given"),
    *("retained", "outside", "attach", "grad", "step", "read", "hand out", "drop", "detach"),
]
PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), NUMBERS, NUMBERS), min_size=3, max_size=12)


class Training:
    """The state of a program: variables, and results that may be heads."""

    def __init__(self, scope):
        self.scope, self.heads, self.log = scope, [], []
        random = np.random.RandomState(0)
        self.weights = [mx.nd.array(random.uniform(-1, 1, (3, 3))) for _ in range(3)]
        self.inputs = [mx.nd.array(random.uniform(-1, 1, (1, 3))) for _ in range(4)]
        for w, grad_req in zip(self.weights, ("write", "add", "write")):
            w.attach_grad(grad_req)

    def run(self, step, i, j):
        getattr(self, "do_" + step.replace(" ", "_"))(i, j)

    def head(self, i):
        return self.heads[i % len(self.heads)]

    def scope_of(self, i, j, first):
        """Compute results of one scope; several read one variable, and one reads two."""
        with autograd.record(), self.scope() as batch:
            for k in range(1 + i % 3):
                y = NET(first[k % len(first)], self.weights[(i + k) % 3])
                self.heads.append(y)
                if k == j % 3 and batch is not None:
                    batch.flush()
                self.heads.append(NET(y, self.weights[j % 3]).sum())

    def do_scope(self, i, j):
        self.scope_of(i, j, self.inputs[j % 3 :])

    def do_failing(self, i, j):
        with contextlib.suppress(KeyError), autograd.record(), self.scope() as batch:
            y = NET(self.inputs[i % 4], self.weights[j % 3])
            self.heads.append(y)
            if batch is not None:
                batch.flush()
            NET(y, self.weights[0])
            raise KeyError

    def do_chained(self, i, j):
        first = [y for y in self.heads[i % 4 :: 2] if y.shape == (1, 3)]
        self.scope_of(i, j, [*first, self.inputs[0]])

    def go_backward(self, heads, given=None, **options):
        for w in self.weights:
            w.grad[:] = 0
        try:
            autograd.backward(heads, given, **options)
        except mx.MXNetError as error:
            # A part of a graph is freed: the loop may fail, and leave gradients half done.
            assume("container is empty" not in str(error))
            self.log.append(np.zeros(1))
        else:
            self.log += [w.grad.asnumpy() for w in self.weights]

    def some(self, i, j):
        return self.heads[i % len(self.heads) :: 1 + j % 3]

    def do_backward(self, i, j):
        self.go_backward(self.some(i, j))

    def do_retained(self, i, j):
        self.go_backward(self.some(i, j), retain_graph=True)

    def do_given(self, i, j):
        heads = self.some(i, j)
        given = [None if k % 2 else y.detach() * 2 for k, y in enumerate(heads)]
        self.go_backward(heads, given, retain_graph=True)

    def do_outside(self, i, j):
        with autograd.record():
            y = self.head(i) * 2 + self.weights[j % 3].sum()
        self.go_backward([y.sum()], retain_graph=True)

    def do_attach(self, i, j):
        self.weights[i % 3].attach_grad(("write", "add")[j % 2])

    def do_grad(self, i, j):
        try:
            found = autograd.grad(self.some(i, j), [self.weights[0]], retain_graph=True)
        except mx.MXNetError:
            # The loop raises if it cannot reach the variable, and a scope gives zeros.
            found = [mx.nd.zeros((3, 3))]
        self.log += [x.asnumpy() for x in found]

    def do_step(self, i, j):
        for w in self.weights:
            w[:] -= 0.1 * w.grad
        self.heads.clear()  # the loop would go backward with the new values

    def do_read(self, i, j):
        self.log.append(self.head(i).asnumpy())

    def do_hand_out(self, i, j):
        self.head(i).wait_to_read()

    def do_drop(self, i, j):
        del self.heads[i % len(self.heads)]

    def do_detach(self, i, j):
        self.inputs.append(self.head(i).detach().reshape((-1,))[:1].reshape((1, 1)).tile((1, 3)))


def run(scope, program):
    training = Training(scope)
    for step, i, j in program:
        if training.heads or step in ("scope", "chained", "failing", "attach", "step"):
            training.run(step, i, j)
    return [*training.log, *training.heads, *training.weights, *(w.grad for w in training.weights)]


@examples(40)
@given(PROGRAMS, st.sampled_from([{}, {}, {"debug": True}]))
def test_training_programs_equal_the_loop(program, options):
    wanted = run(contextlib.nullcontext, program)
    got = run(lambda: gdb.batching(**{**FIXED, **options}), program)
    equal(got, wanted, rtol=1e-4, atol=1e-5)
