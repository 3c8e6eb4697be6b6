"""Dynamic batching for Gluon: write a model for one sample, run it for a minibatch at once."""

from . import testing
from .block import DynamicHybridBlock, batching, convert, map
from .errors import (
    ArgumentError,
    BudgetError,
    CellError,
    ContextError,
    DTypeError,
    DynBatchError,
    GradientError,
    LaunchError,
    MismatchError,
    NotMergedError,
    OptionError,
    SampleError,
    ScopeError,
    ShapeError,
    StaleArrayError,
    UninitializedError,
)
from .report import Report
from .schedule import Budget
from .scope import Batch

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Batch",
    "Budget",
    "BudgetError",
    "CellError",
    "ContextError",
    "DTypeError",
    "DynBatchError",
    "DynamicHybridBlock",
    "GradientError",
    "LaunchError",
    "MismatchError",
    "NotMergedError",
    "OptionError",
    "Report",
    "SampleError",
    "ScopeError",
    "ShapeError",
    "StaleArrayError",
    "UninitializedError",
    "batching",
    "convert",
    "map",
    "testing",
]
