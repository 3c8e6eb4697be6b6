"""Graphs of Gluon's blocks that native code runs if calls run at once, see `BlockGraph`."""

from __future__ import annotations

from typing import Any, Optional

import mxnet as mx
from mxnet.gluon import Constant, HybridBlock, Parameter
from mxnet.ndarray import sparse

from ..native import recording


def graph_of_gluon(block: HybridBlock, args: Any) -> Optional[recording.BlockGraph]:
    """Return the graph of one of Gluon's blocks, whose cached graph has run with some arguments.

    None if native code cannot run it, as of `graph_of`.
    """
    op = block._cached_op
    if type(op) is not mx.nd.CachedOp:
        return None
    # Gluon writes 0 for an array, and other numbers for other things.
    results, out_spec = recording.flatten(block._out_format, int)
    if any(results):
        return None
    spec = recording.flatten(args)[1]
    return recording.graph_of(op, block._cached_op_args, spec, out_spec, op.is_np_sym)


recording.cached_op_methods = [HybridBlock._call_cached_op]
recording.parameter_types, recording.array_of_kind = (Parameter, Constant), sparse._ndarray_cls
