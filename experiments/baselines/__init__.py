"""Models batched by hand, with the same parameters, as a comparison for the library.

`manual` is the model of sentence pairs, `phrases` the binary Tree-LSTM, and `padded` has the models
of text. All use MXNet's autograd, and none uses gluon_dynbatch.
"""
