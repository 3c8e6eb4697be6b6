from . import contrib as contrib
from . import nn as nn
from . import rnn as rnn
from .block import Block as Block
from .block import HybridBlock as HybridBlock
from .block import SymbolBlock as SymbolBlock
from .parameter import Parameter as Parameter
from .parameter import ParameterDict as ParameterDict
