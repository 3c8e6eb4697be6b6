"""Dynamic batching for Gluon: write a model for one sample, run it for a minibatch at once."""

from . import errors, testing
from .block import DynamicHybridBlock, batching, convert, map
from .errors import *  # noqa: F403
from .handle import Batch
from .optimizers import FusedAdaGrad, FusedAdam
from .report.report import Report
from .schedule import Budget
from .serve.batcher import RequestBatcher
from .serve.clients import RequestStream
from .serve.remote import RemoteBatcher
from .serve.stats import BatcherStats
from .stream import imap

__version__ = "0.2.0"

__all__ = [
    "Batch",
    "BatcherStats",
    "Budget",
    "DynamicHybridBlock",
    "FusedAdaGrad",
    "FusedAdam",
    "RemoteBatcher",
    "Report",
    "RequestBatcher",
    "RequestStream",
    "batching",
    "convert",
    "imap",
    "map",
    "testing",
    *(name for name in vars(errors) if name.endswith("Error")),
]
