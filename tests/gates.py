"""An operator that holds the engine up until a gate is open."""

import threading

import mxnet as mx

from tests.common import PATIENCE

GATE = threading.Event()


class Gated(mx.operator.CustomOp):
    """Hands its input, or its gradient, on once the gate is open."""

    def __init__(self, backward):
        super().__init__()
        self._backward = backward

    def forward(self, is_train, req, in_data, out_data, aux):
        assert self._backward or GATE.wait(PATIENCE)
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        assert GATE.wait(PATIENCE)
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("dynbatch_test_gated")
class GatedProp(mx.operator.CustomOpProp):
    def __init__(self, backward="0"):
        super().__init__()
        self._backward = bool(int(backward))

    def create_operator(self, ctx, shapes, dtypes):
        return Gated(self._backward)


def gated(array, backward=0):
    return mx.nd.Custom(array, op_type="dynbatch_test_gated", backward=backward)
