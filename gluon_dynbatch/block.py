"""What users write and call: the block, the scope, and two helpers."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Iterable, List, Optional, TypeVar

import mxnet as mx
from mxnet.gluon import Block, HybridBlock
from mxnet.gluon.parameter import DeferredInitializationError
from mxnet.gluon.rnn import RecurrentCell
from mxnet.ndarray import NDArray

from .record import structure
from .record.pieces import Pieces
from .record.recorder import FLATTENER, bad_argument, context_error
from .record.state import STATE
from .record.types import TYPES
from .record.where import user_line
from .run.dispatch import ONE_AT_A_TIME
from .samples import PASSING
from .scope import RUNTIME, Batch, check_options, scope_defaults
from .trace.infer import infer_shapes
from .trace.program import graph_arguments
from .trace.symbols import compile_symbol

Sample = TypeVar("Sample")
Result = TypeVar("Result")


def batching(
    analysis_budget: Any = "auto",
    granularity: str = "auto",
    policy: str = "auto",
    max_rows: Optional[int] = None,
    strict: bool = False,
    debug: bool = False,
) -> Batch:
    """Open a scope in which the calls of many samples run together.

    Inside, two kinds of calls are recorded: of hybridized blocks, each as one call; and of
    ``mx.nd`` operators, each by itself, if one of their arrays is a result of a recorded call or
    was made by ``mx.nd.zeros``, ``ones`` or ``full`` in the scope.  A block that is not hybridized
    is no call of its own but the operators in it, unless it is Gluon's own and called with such an
    array.  Everything else runs at once, as without a scope.

    Results are lazy arrays that know shape, dtype and context.  At the end of the scope, or when a
    value is asked for, everything recorded is grouped and run.  Values and gradients are those of
    the same program without the scope.

    Parameters
    ----------
    analysis_budget : "auto", None, float or Budget, optional
        What the analyzer may spend on one flush: milliseconds, a :class:`Budget`, or None for no
        limit.  0 means no analysis: calls run one by one in the order they were recorded.
    granularity : {"auto", "graph", "block", "operator"}, optional
        What is merged: whole samples of one shape, calls of blocks, or pieces of blocks.
    policy : {"auto", "depth", "agenda", "search"}, optional
        How groups are found, from the cheapest to the most thorough; or the name of another policy
        in `gluon_dynbatch.schedule.POLICIES`.
    max_rows : int, optional
        Rows of one launch at most, which bounds its working memory.
    strict : bool, optional
        Whether calls that no rule allows to merge are an error.
    debug : bool, optional
        Whether every result is compared with that of its call alone.  Slow.

    Returns
    -------
    Batch
        A context manager with ``flush()``, ``report`` and ``plan``.

    Raises
    ------
    BudgetError, OptionError
        An option has a value that does not exist.

    Examples
    --------
    >>> net = gdb.convert(mx.gluon.nn.Dense(2, in_units=3))
    >>> net.initialize()
    >>> net.hybridize()
    >>> with gdb.batching() as batch:
    ...     outputs = [net(mx.nd.ones((1, 3))) for _ in range(10)]
    >>> batch.report.nodes, batch.report.launches
    (10, 1)
    """
    return Batch(check_options(analysis_budget, granularity, policy, max_rows, strict, debug))


def map(
    fn: Callable[[Sample], Result],
    samples: Iterable[Sample],
    concurrency: Optional[int] = None,
    on_error: str = "raise",
    **scope_options: Any,
) -> List[Result]:
    """Apply a function to every sample within one scope.

    Every sample runs as a fiber: one that asks for a value (``asscalar``, ``asnumpy``, ``float``,
    ``if``) waits until all others have come as far or ended, and then everything that is pending
    is computed together (P. Fegade et al., "ACRoBat", MLSys 2024, arXiv:2305.10611).

    Parameters
    ----------
    fn : callable
        What to compute for one sample: a block or a function.
    samples : iterable
        The minibatch.  A sample that is a tuple is passed as several arguments, ``fn(*sample)``,
        if `fn` takes that many and cannot be called with one; everything else is one argument.
    concurrency : int, optional
        How many samples are under way at most; another one begins as soon as one ends.  By default
        all of them.
    on_error : {"raise", "return"}, optional
        What an exception of one sample does: end all others, or stand among the results.
    **scope_options
        Options of :func:`batching`.

    Returns
    -------
    list
        ``fn(sample)`` for every sample, computed; within another scope, still pending.

    Raises
    ------
    ArgumentError
        `fn` can be called neither with a sample nor with its elements; or it is a generator
        function or a coroutine function, which would return before anything has run.
    OptionError
        An option has a value that does not exist.

    Examples
    --------
    >>> distance = lambda a, b: mx.nd.norm(a - b)
    >>> pairs = [(mx.nd.ones((3,)), mx.nd.zeros((3,))), (mx.nd.ones((3,)), mx.nd.ones((3,)))]
    >>> [round(d.asscalar(), 2) for d in gdb.map(distance, pairs)]
    [1.73, 0.0]
    """
    with batching(**scope_options) as batch:
        return batch.map(fn, samples, concurrency, on_error)


class DynamicHybridBlock(HybridBlock):
    """A Gluon block whose calls can be recorded and batched across samples.

    Override ``hybrid_forward`` for a cell (static, for one node of one sample) or ``forward`` for a
    dynamic block (any Python control flow over cells).  Outside a scope, or not hybridized, it is a
    ``HybridBlock``, but for one thing: a cell accepts several structures of arguments, such as
    lists of different lengths, and keeps one cached graph for each.
    """

    _scope_defaults: Optional[Dict[str, Any]] = None
    #: What is known of calls of `forward`, with ``trace_once=True``.
    _pieces: Optional[Pieces] = None

    def hybridize(
        self, active: bool = True, *flags: Any, trace_once: bool = False, **options: Any
    ) -> None:
        """Switch recording and cached graphs on or off, here and in all children.

        Parameters
        ----------
        active : bool, optional
            On or off.
        analysis_budget, granularity, policy : optional
            Defaults for scopes that are opened without them; see :func:`batching`.
        trace_once : bool, optional
            Whether, in a scope, ``forward`` of dynamic blocks runs once per structure of its
            arguments, as ``hybrid_forward`` does; from then on its calls are recorded without it.
            It has to depend on its arguments and on attributes of blocks alone.
        *flags, **options
            Flags of ``HybridBlock.hybridize``, such as ``static_alloc``.
        """
        own = {
            name: options.pop(name)
            for name in ("analysis_budget", "granularity", "policy")
            if name in options
        }
        self._scope_defaults = scope_defaults(own) or None
        RUNTIME.hybridized += 1
        super().hybridize(active, *flags, **options)
        self.apply(functools.partial(_trace_once, bool(trace_once and active)))

    def __call__(self, *args: Any) -> Any:
        """Run or record the block for one sample."""
        recorder = STATE.recorder
        if recorder is None or not self._active:
            return super().__call__(*args)
        if self._scope_defaults is not None:
            STATE.batch.use_defaults(self._scope_defaults)
        if self._forward_hooks or self._forward_pre_hooks:
            return super().__call__(*args)
        if type(self).forward in CELL_FORWARDS:
            return recorder.call_block(self, args)
        if self._pieces is not None:
            return self._pieces.call(recorder, self, args)
        return self.forward(*args)

    def forward(self, *args: Any) -> Any:
        """Run ``hybrid_forward``; dynamic blocks override this.

        Unlike the method of ``HybridBlock`` it takes arrays in any structure of arguments.
        """
        try:
            leaves, _ = FLATTENER.flatten(args)
        except TypeError:
            leaves = []
        if not leaves:
            return super().forward(*args)
        contexts = {leaf.context for leaf in leaves}
        if len(contexts) > 1:
            raise context_error(contexts, self.name)
        context = contexts.pop()
        with context:
            if self._active:
                return self._call_cached_op(*args)
            return self.hybrid_forward(mx.nd, *args, **self._parameters_on(context, args))

    def _parameters_on(self, context: mx.Context, args: Any) -> Dict[str, NDArray]:
        try:
            return {name: parameter.data(context) for name, parameter in self._reg_params.items()}
        except DeferredInitializationError:
            self._deferred_infer_shape(*args)
            for parameter in self.params.values():
                parameter._finish_deferred_init()
            return {name: parameter.data(context) for name, parameter in self._reg_params.items()}

    def _call_cached_op(self, *args: Any) -> Any:
        recorder = STATE.recorder
        if recorder is None and STATE.batch is not None:
            recorder = STATE.batch.recorder_of(self)
        if recorder is not None:
            return recorder.call_block(self, args)
        if self._backend:
            return super()._call_cached_op(*args)
        return self._run_cached_graph(args)

    def _run_cached_graph(self, args: Any) -> Any:
        """Run the cached graph for this structure of arguments, without recording the call."""
        try:
            leaves, spec = FLATTENER.flatten(args)
        except TypeError as error:
            raise bad_argument(error.args[0], self.name) from None
        callee = RUNTIME.library.callee(self)
        graph = callee.graphs.get(spec)
        if graph is None:
            types = tuple(TYPES[TYPES.of(leaf)] for leaf in leaves)
            graph = callee.graphs[spec] = CachedGraph(
                self, callee.program(spec, types, user_line()), types
            )
        self._cached_graph = graph.inputs, graph.symbol
        # In place: a new list would mean that the graphs are out of date.
        self._cached_op_args[:] = graph.arguments
        if self._callback:
            graph.show_operators(self._callback, self._monitor_all)
        return graph.run(leaves)

    def _deferred_infer_shape(self, *args: Any) -> None:
        leaves, spec = FLATTENER.flatten(args)
        types = tuple(TYPES[TYPES.of(leaf)] for leaf in leaves)
        try:
            infer_shapes(RUNTIME.library.callee(self).program(spec, types, user_line()), types)
        except Exception as error:
            raise ValueError(
                f"Deferred initialization failed because shape cannot be inferred. {error}"
            ) from error


def _trace_once(wanted: bool, block: Block) -> None:
    if isinstance(block, DynamicHybridBlock) and (wanted or block._pieces is not None):
        block._pieces = Pieces() if wanted else None


#: Blocks with one of these methods are cells.
CELL_FORWARDS = (DynamicHybridBlock.forward, HybridBlock.forward, RecurrentCell.forward)
PASSING += [DynamicHybridBlock.__call__, DynamicHybridBlock.forward, RecurrentCell.forward]


class CachedGraph:
    """A block's program for one structure of arguments, compiled for use outside scopes."""

    def __init__(self, block: DynamicHybridBlock, program: Any, types: Any):
        infer_shapes(program, types)
        self.symbol = program.symbol
        self.inputs = [mx.sym.var(name) for name in program.names]
        self._out_spec = program.out_spec
        self.arguments = graph_arguments(program)
        is_data = [is_data for is_data, _ in self.arguments]
        self._cached_op = compile_symbol(self.symbol, is_data, *block._flags)

    def show_operators(self, callback: Any, monitor_all: bool) -> None:
        """Let `callback` see the result of each operator; see ``register_op_hook``."""
        self._cached_op._register_op_hook(callback, monitor_all)

    def run(self, leaves: List[NDArray]) -> Any:
        """Run the graph and return its results in their structure."""
        context = leaves[0].context if leaves else None
        arguments = [leaves[i] if is_data else i.data(context) for is_data, i in self.arguments]
        with ONE_AT_A_TIME:
            results = self._cached_op(*arguments)
        results = [results] if isinstance(results, NDArray) else results
        return structure.unflatten(self._out_spec, results)


_CONVERTED: Dict[type, type] = {}


def convert(block: Block) -> Block:
    """Make an existing Gluon or GluonNLP block, with all its children, dynamic in place.

    Hybridized Gluon blocks are recorded in a scope without this as well.  Converted, they can do
    what those cannot: be called with structures of arguments that differ from call to call, such as
    lists of any length; be recorded at less cost per call; give defaults for scopes to
    ``hybridize``; and let ``"auto"`` run small minibatches at once.

    Parameters
    ----------
    block : Block
        Any tree of blocks.  Plain ``Block`` objects inside stay what they are; every
        ``HybridBlock`` becomes a :class:`DynamicHybridBlock` as well.

    Returns
    -------
    Block
        The same object; parameters, names and ``isinstance`` are unchanged.

    Raises
    ------
    TypeError
        `block` is not a Gluon block.
    """
    if not isinstance(block, Block):
        raise TypeError(f"convert takes a Gluon block, not {type(block).__name__}")
    if isinstance(block, HybridBlock) and not isinstance(block, DynamicHybridBlock):
        cls = type(block)
        if cls not in _CONVERTED:
            names: Dict[str, Any] = {
                name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")
            }
            # What the class itself overrides stays in front of what this one brings.
            if cls.forward is not HybridBlock.forward:
                names["forward"] = cls.forward
            if cls.__call__ is not HybridBlock.__call__:
                names["__call__"] = cls.__call__
            _CONVERTED[cls] = type(cls.__name__, (DynamicHybridBlock, cls), names)
        block.__class__ = _CONVERTED[cls]
    for child in block._children.values():
        convert(child)
    return block
