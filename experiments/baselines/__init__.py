"""Models batched by hand, with the same parameters, as a comparison for the library.

`manual` is the model of sentence pairs, `padded` the tagger. Both use MXNet's autograd, and neither
uses gluon_dynbatch.
"""
