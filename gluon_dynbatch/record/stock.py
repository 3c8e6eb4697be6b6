"""Which blocks are recorded as one call: static ones, and those that are MXNet's own."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional, Tuple

from mxnet.gluon import Block, HybridBlock, SymbolBlock, nn, rnn

from ..native import recording

if TYPE_CHECKING:
    from .recorder import Recorder
    from .state import Callees

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


class StockCall:
    """What calls of a stock block need that is not hybridized, while its attributes are these.

    Its Python code would run for each call, so another attribute makes another call.  Raises
    ``TypeError`` for attributes whose changes cannot be detected.
    """

    #: Its callee; and one of this block alone, which pieces of dynamic blocks need.
    callee: Any
    own: Any

    def __init__(self, block: HybridBlock, library: Callees, last: Optional[StockCall]) -> None:
        self._class, self._arguments = type(block), block._cached_op_args
        self._seen = recording.Structure(None, True, True)
        self._key = self._seen.write(0, block)
        if last is not None and last._key == self._key and last._arguments is self._arguments:
            self.callee, self.own = last.callee, last.own
            return
        self.own = library.stock_callee(block)
        # Blocks without parameters do the same if their attributes are equal.
        alike = not self._seen.leaves
        self.callee = library.stock_callee(block, self._key) if alike else self.own

    def is_current(self, block: HybridBlock) -> bool:
        """Return whether the attributes of the block have not changed."""
        same = self._class is type(block) and self._arguments is block._cached_op_args
        return same and self._seen.unchanged()


class StockCalls:
    """The last `StockCall` of a block: an attribute of the block, which need not change again."""

    def __init__(self, block: HybridBlock) -> None:
        #: A copied block has this object of the original among its attributes.
        self.identity = id(block)
        self.last: Optional[StockCall] = None

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the block needs its own


def _callee_of_stock(recorder: Recorder, block: HybridBlock, args: Any) -> Any:
    """Return the callee of a stock block that is not hybridized; None if it is not one call."""
    if not recording.any_lazy(args) or not _has_states(block, args):
        return None
    fields = vars(block)
    calls: Optional[StockCalls] = fields.get("_dynbatch_stock")
    if calls is None or calls.identity != id(block):
        calls = fields["_dynbatch_stock"] = StockCalls(block)
    call = calls.last
    if call is None or not call.is_current(block):
        if not _is_stock(block):
            return None
        try:
            call = calls.last = StockCall(block, recorder.library, call)
        except (TypeError, ValueError, RecursionError):
            return None
    return call.callee if recorder.tracing is None else call.own


recording.classify_forward, recording.callee_of_stock = _classify_forward, _callee_of_stock
