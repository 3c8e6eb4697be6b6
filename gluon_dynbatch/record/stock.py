"""Which blocks are recorded as one call: static ones, and those that are MXNet's own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Tuple

from mxnet.gluon import Block, HybridBlock, SymbolBlock, nn, rnn

from ..native import recording

#: Methods ``forward`` that only pass their arguments to ``hybrid_forward``.
FORWARDS = [HybridBlock.forward, rnn.RecurrentCell.forward]
#: Stock blocks whose ``hybrid_forward`` runs the user's code or keeps state between calls.
_NOT_PURE = (nn.HybridLambda, rnn.ModifierCell, SymbolBlock)


@lru_cache(maxsize=None)
def _classify_forward(block_class: Any) -> Tuple[bool, bool]:
    """Classify the ``forward`` of a class of blocks as static, and as stock.

    It is static if it only passes its arguments to ``hybrid_forward``; and stock if, in addition,
    both are MXNet's own and only call operators.
    """
    if not issubclass(block_class, HybridBlock) or block_class.forward not in FORWARDS:
        return False, False
    callers = [base for base in block_class.__mro__ if "__call__" in vars(base)]
    modules = block_class.__module__, block_class.forward.__module__
    stock = all(name.startswith("mxnet.gluon.") for name in modules) and callers == [Block]
    return True, stock and not issubclass(block_class, _NOT_PURE)


def _is_stock(block: Block) -> bool:
    """Return whether a block and its children are all MXNet's own and have no hooks."""
    hooked = block._forward_hooks or block._forward_pre_hooks
    block_class: Any = block.__class__
    stock = not hooked and _classify_forward(block_class)[1]
    return stock and all(map(_is_stock, block._children.values()))


def _has_states(block: Block, args: Any) -> bool:
    """Return whether the states of a cell are a list: a symbol has no rows, which an array has."""
    return not isinstance(block, rnn.RecurrentCell) or isinstance(args[-1], (list, tuple))


def _is_one_call(block: Block, args: Any) -> bool:
    """Return whether a call of a stock block that is not hybridized is recorded as one call."""
    return recording.any_lazy(args) and _is_stock(block) and _has_states(block, args)


recording.classify_forward, recording.is_one_call = _classify_forward, _is_one_call
