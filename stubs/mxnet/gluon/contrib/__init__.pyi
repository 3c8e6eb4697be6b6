from . import rnn as rnn
