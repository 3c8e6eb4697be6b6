"""The public functions `batching`, `map` and `convert`, and `DynamicHybridBlock`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, TypeVar

import mxnet as mx
from mxnet.gluon import Block, HybridBlock
from mxnet.ndarray import NDArray
from mxnet.util import is_np_array

from .errors import ArgumentError
from .handle import Batch
from .native import recording
from .options import DEFAULTS, Options, check_flags, check_names, check_options, check_switch
from .record.pieces import Pieces
from .record.recorder import bad_argument, context_error, run_as_python
from .record.stock import FORWARDS
from .record.types import TYPES
from .record.where import user_line
from .scope import RUNTIME
from .trace.infer import infer_shapes
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

    The scope records two kinds of calls: calls of hybridized blocks, and calls of operators of
    ``mx.nd`` or ``mx.np`` on a *lazy array*.  A lazy array is the result of a recorded call, or an
    array that is made in the scope, as by ``mx.nd.array`` or ``zeros``.  If a block is not
    hybridized, each of its operators is a call; Gluon's own blocks are still one call on lazy
    arrays.  All other calls run at once, as without a scope.

    The shape, dtype and context of a lazy array are known immediately.  At the end of the scope, or
    when a value is read, a *flush* groups and runs all recorded calls.  Values and gradients are
    those of the same program without the scope, up to rounding errors.

    Without options, a scope has granularity "operator", policy "depth" and no limit on the
    analysis, and "auto" runs the calls of later scopes at once where recording does not pay.  With
    a budget, "auto" is the policy "search".

    Parameters
    ----------
    analysis_budget : "auto", None, float or Budget, optional
        Limit on the analysis of one flush: milliseconds, a :class:`Budget`, or None for no limit.
        With 0, calls run one by one in the order in which they were recorded.
    granularity : {"auto", "graph", "block", "operator"}, optional
        What is merged: samples that make the same calls, calls, or parts of calls.
    policy : {"auto", "depth", "agenda", "search"}, optional
        The algorithm that finds groups, from the cheapest to the most thorough, or the name of
        another policy in ``gluon_dynbatch.schedule.POLICIES``.
    max_rows : int, optional
        Largest number of rows (axis 0) in one launch.  It limits the working memory.
    strict : bool, optional
        If true, it is an error if calls cannot be merged or recorded, or if calls of one kind
        merge only in several launches, which a small change would join.
    debug : bool, optional
        If true, each launch is compared with its calls run one by one, and each sample of a map
        with the plain loop.  This is slow.

    Returns
    -------
    Batch
        A context manager with ``flush()``, ``map()``, ``report`` and ``plan``.

    Raises
    ------
    BudgetError
        The analysis budget is invalid.
    OptionError
        Another option has an unknown value.

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
    options = Options(analysis_budget, granularity, policy, max_rows, strict, debug)
    return Batch(check_options(options))


def map(
    fn: Callable[[Sample], Result],
    samples: Iterable[Sample],
    concurrency: Optional[int] = None,
    on_error: str = "raise",
    **scope_options: Any,
) -> List[Result]:
    """Apply a function to every sample within one scope.

    Every sample runs in a fiber.  A sample that reads a value (``asscalar``, ``asnumpy``,
    ``float``, ``if``) waits until all others wait or have ended.  Then all pending calls are
    computed together, and the samples continue (P. Fegade et al., "ACRoBat", MLSys 2024,
    arXiv:2305.10611).

    Parameters
    ----------
    fn : callable
        A block or a function of one sample.
    samples : iterable
        The minibatch.  A tuple is passed as several arguments, ``fn(*sample)``, if `fn` takes that
        many and cannot be called with one.  Every other sample is passed as one argument.  A block
        or method that takes both, because it has defaults, is refused.
    concurrency : int, optional
        Largest number of samples that run at the same time.  The next one starts when one ends.
        By default, all run at the same time.
    on_error : {"raise", "return"}, optional
        With "raise", the first exception stops the other samples and is raised.  With "return", an
        exception becomes the result of its sample, and the other samples continue.
    **scope_options
        Options of :func:`batching`.

    Returns
    -------
    list
        ``fn(sample)`` for every sample, in the order of the samples.  Arrays are computed.  Within
        another scope, they are still pending.

    Raises
    ------
    ArgumentError
        `fn` cannot be called, does not take the sample, or is a generator function or a coroutine
        function; or it is a block or a method that takes a tuple both as one argument and as
        several.
    BudgetError, OptionError
        An option has an unknown value.
    MismatchError
        With ``debug=True``, a result differs from that of the plain loop.

    Examples
    --------
    >>> distance = lambda a, b: mx.nd.norm(a - b)
    >>> pairs = [(mx.nd.ones((3,)), mx.nd.zeros((3,))), (mx.nd.ones((3,)), mx.nd.ones((3,)))]
    >>> [round(d.asscalar(), 2) for d in gdb.map(distance, pairs)]
    [1.73, 0.0]
    """
    with batching(**check_names(scope_options, "map")) as batch:
        results: List[Result] = batch.map(fn, samples, concurrency, on_error)
    return results


class DynamicHybridBlock(HybridBlock):
    """A Gluon block whose calls can be recorded and batched across samples.

    Override ``hybrid_forward`` to write a *cell*: the operators of one step of one sample.
    Override ``forward`` to write a *dynamic block*: any Python code that calls cells.

    Outside a scope, it is a ``HybridBlock`` with one difference: a cell accepts several structures
    of arguments, such as lists of different lengths, and keeps one cached graph for each of them.

    A cell takes arrays, numbers, strings, None, and lists, tuples and dictionaries of these.  A
    dynamic block takes any object.  Axis 0 counts rows, so a vector has the shape (1, size).

    Parameters
    ----------
    prefix, params : optional
        As for ``gluon.HybridBlock``.

    Examples
    --------
    >>> class Add(gdb.DynamicHybridBlock):
    ...     def hybrid_forward(self, F, arrays):  # a list of any length
    ...         return F.add_n(*arrays)
    >>> add = Add()
    >>> add.hybridize()
    >>> ones = [mx.nd.ones((1, 2))] * 3
    >>> [y.asnumpy().tolist() for y in gdb.map(add, [ones[:2], ones])]
    [[[2.0, 2.0]], [[3.0, 3.0]]]
    """

    _scope_defaults: Optional[Options] = None
    #: Recorded calls of `forward`, with ``trace_once=True``.
    _pieces: Optional[Pieces] = None

    def hybridize(
        self,
        active: bool = True,
        *flags: Any,
        analysis_budget: Any = "auto",
        granularity: str = "auto",
        policy: str = "auto",
        trace_once: bool = False,
        **options: Any,
    ) -> None:
        """Switch recording and cached graphs on or off, here and in all children.

        Parameters
        ----------
        active : bool, optional
            On or off.
        analysis_budget, granularity, policy : optional
            Defaults for scopes that are opened without these options; see :func:`batching`.
        trace_once : bool, optional
            If true, ``forward`` of dynamic blocks runs once per structure of its arguments in
            scopes.  Later calls reuse the recorded calls.  ``forward`` must depend only on its
            arguments and on attributes of blocks.
        *flags, **options
            Flags of ``HybridBlock.hybridize``, such as ``static_alloc``.

        Raises
        ------
        BudgetError, OptionError
            A default or `trace_once` has an unknown value.
        ArgumentError
            A flag is an option of :func:`batching` that has no default here, such as `max_rows`; or
            it is unknown, and no ``backend`` is given, of which it may be an option.
        """
        check_switch("trace_once", trace_once)
        is_gluons = getattr(super().hybridize, "__func__", None) is HybridBlock.hybridize
        check_flags(options, is_gluons and not flags and options.get("backend") is None)
        defaults = check_options(Options(analysis_budget, granularity, policy))
        self._scope_defaults = None if defaults == DEFAULTS else defaults
        RUNTIME.hybridized += 1
        super().hybridize(active, *flags, **options)
        self.apply(lambda block: _trace_once(block, trace_once and active))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say so if an attribute is missing because Gluon's ``__init__`` has not run."""
            inherited = getattr(super(), "__getattr__", None)
            if inherited is not None:
                return inherited(name)
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if "_children" not in vars(self):
                message += ": call super().__init__() first in its __init__"
            raise AttributeError(message)

    def forward(self, *args: Any) -> Any:
        """Run ``hybrid_forward``; dynamic blocks override this method.

        Unlike ``HybridBlock.forward``, it takes arguments of any structure.

        Raises
        ------
        ArgumentError
            An argument is of a type that cannot be recorded.
        ContextError
            Arguments are in different contexts.
        """
        try:
            leaves, _ = recording.flatten(args)
        except TypeError:
            leaves = []
        if not leaves:
            return super().forward(*args)
        contexts = {leaf.ctx for leaf in leaves}
        if len(contexts) > 1:
            raise context_error(contexts, self.name)
        context = contexts.pop()
        with context:
            if self._active:
                return self._call_cached_op(*args)
            return run_as_python(self, args, context)

    @recording.cached_op_hook
    def _call_cached_op(self, *args: Any) -> Any:
        """Run the cached graph for this structure of arguments, where no scope records the call."""
        if self._backend:
            return super()._call_cached_op(*args)
        try:
            leaves, spec = recording.flatten(args)
        except TypeError as error:
            raise bad_argument(error.args[0], self.name) from None
        callee, key = RUNTIME.library.callee(self), (spec, is_np_array())
        compiled = callee.compiled
        if key not in compiled:
            program = self._infer(leaves, spec)
            are_data = [is_data for is_data, _ in program.symbol_inputs]
            op = compile_symbol(program.symbol, are_data, *self._flags)
            variables = [mx.sym.var(name) for name in program.names]
            specs = spec, program.out_spec, key[1]
            graph = recording.graph_of(op, program.symbol_inputs, *specs)
            compiled[key] = program, op, (variables, program.symbol), graph
        program, op, cached, graph = compiled[key]
        if self._cached_graph is not cached:
            self._cached_graph = cached
            # In place: the identity of the list shows whether compiled graphs are up to date.
            self._cached_op_args[:] = program.symbol_inputs
        callee.graph = graph
        if self._callback:
            op._register_op_hook(self._callback, self._monitor_all)
        context = leaves[0].ctx if leaves else None
        inputs = [leaves[i] if is_data else i.data(context) for is_data, i in program.symbol_inputs]
        with op.lock:
            results = op(*inputs)
        results = [results] if isinstance(results, NDArray) else results
        return recording.unflatten(program.out_spec, results)

    def export(self, *args: Any, **options: Any) -> Any:
        """Write the graph of a cell to files, as Gluon does; Python code has none."""
        if type(self).forward not in FORWARDS and not self._cached_graph:
            what = "a block that overrides forward has no graph to export"
            advice = "save its parameters with save_parameters(), and export the cells it calls"
            raise ArgumentError(what, user_line(), self.name, advice)
        return super().export(*args, **options)

    def _infer(self, leaves: List[NDArray], spec: Any) -> Any:
        """Return the program for arguments; infer the shapes of its parameters if necessary."""
        types = tuple(TYPES[TYPES.of(leaf)] for leaf in leaves)
        callee = RUNTIME.library.callee(self)
        program = RUNTIME.library.program(callee, spec, len(leaves), user_line())
        if any(parameter._deferred_init for parameter in program.parameters.values()):
            infer_shapes(program, types)
        return program

    def infer_shape(self, *args: Any) -> None:
        """Infer the shapes of parameters from arguments of any structure."""
        self._infer(*recording.flatten(args))


def _trace_once(block: Block, active: bool) -> None:
    if isinstance(block, DynamicHybridBlock) and (active or block._pieces is not None):
        is_cell = type(block).forward in FORWARDS
        block._pieces = Pieces() if active and not is_cell else None


class _Converted(type):
    """Metaclass of the classes that `convert` makes: one stands for the class that it extends.

    Gluon replaces a child only by an instance of the child's class.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__bases__[1])


# Blocks with this method are cells.
FORWARDS.append(DynamicHybridBlock.forward)
recording.cached_op_methods.append(DynamicHybridBlock._call_cached_op)
#: Dynamic classes, by the Gluon class that they extend.
_CONVERTED: Dict[type, type] = {}


def convert(block: Block) -> Block:
    """Turn a Gluon or GluonNLP block and all its children into dynamic blocks, in place.

    Scopes also record hybridized Gluon blocks that are not converted.  Converted blocks take
    arguments whose structure differs from call to call, such as lists of any length.  Recording
    their calls is faster, ``hybridize`` takes defaults for scopes, and ``"auto"`` can run small
    minibatches at once.

    Parameters
    ----------
    block : Block
        Any block.  It and every ``HybridBlock`` below it becomes a :class:`DynamicHybridBlock`.
        Plain ``Block`` objects stay as they are.

    Returns
    -------
    Block
        The same object.  Parameters, names and ``isinstance`` are unchanged.

    Raises
    ------
    ArgumentError
        `block` is not a Gluon block.

    Examples
    --------
    >>> net = gdb.convert(mx.gluon.nn.Dense(2, in_units=3))
    >>> isinstance(net, gdb.DynamicHybridBlock), isinstance(net, mx.gluon.nn.Dense)
    (True, True)
    """
    if not isinstance(block, Block):
        what = f"an object of type {type(block).__name__}"
        raise ArgumentError(
            f"convert takes a Gluon block, not {what}", user_line(), advice="pass a block"
        )
    if isinstance(block, HybridBlock) and not isinstance(block, DynamicHybridBlock):
        cls = type(block)
        if cls not in _CONVERTED:
            names = ["__module__", "__qualname__", "__doc__"]
            # An override of the class itself precedes that of DynamicHybridBlock.
            names += ["forward"] * (cls.forward is not HybridBlock.forward)
            attributes = {name: getattr(cls, name) for name in names}
            # A metaclass of the class itself is kept.
            kind = type("_Converted", tuple(dict.fromkeys([_Converted, type(cls)])), {})
            _CONVERTED[cls] = kind(cls.__name__, (DynamicHybridBlock, cls), attributes)
        block.__class__ = _CONVERTED[cls]
    for child in block._children.values():
        convert(child)
    return block
