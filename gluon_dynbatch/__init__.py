"""Dynamic batching for Gluon: write a model for one sample, run it for a minibatch at once."""

from . import testing
from .block import DynamicHybridBlock, batching, convert, map
from .errors import (
    ArgumentError,
    BudgetError,
    CellError,
    ClosedError,
    ContextError,
    DTypeError,
    DynBatchError,
    GradientError,
    LaunchError,
    MismatchError,
    MissingError,
    NotMergedError,
    OptionError,
    QueueFullError,
    RequestError,
    SampleError,
    ScopeError,
    ShapeError,
    StaleArrayError,
    UninitializedError,
)
from .report import BatcherStats, Report
from .schedule import Budget
from .scope import Batch
from .serving import RequestBatcher
from .stream import imap

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Batch",
    "BatcherStats",
    "Budget",
    "BudgetError",
    "CellError",
    "ClosedError",
    "ContextError",
    "DTypeError",
    "DynBatchError",
    "DynamicHybridBlock",
    "GradientError",
    "LaunchError",
    "MismatchError",
    "MissingError",
    "NotMergedError",
    "OptionError",
    "QueueFullError",
    "Report",
    "RequestBatcher",
    "RequestError",
    "SampleError",
    "ScopeError",
    "ShapeError",
    "StaleArrayError",
    "UninitializedError",
    "batching",
    "convert",
    "imap",
    "map",
    "testing",
]
