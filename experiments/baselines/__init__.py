"""Models batched by hand, on the same parameters, to measure the library against.

`manual` is the model of sentence pairs, `padded` the tagger. Neither uses gluon_dynbatch; both
differentiate with MXNet's own tape.
"""
