"""What this package uses of MXNet 1.9.1, which has no types of its own."""

from . import attribute as attribute
from . import autograd as autograd
from . import base as base
from . import context as context
from . import gluon as gluon
from . import name as name
from . import ndarray as ndarray
from . import ndarray as nd
from . import numpy as np
from . import optimizer as optimizer
from . import profiler as profiler
from . import random as random
from . import symbol as symbol
from . import symbol as sym
from . import util as util
from .base import MXNetError as MXNetError
from .context import Context as Context
from .context import cpu as cpu
from .context import current_context as current_context
