"""Other ways to run the relatedness model, on the same parameters, to measure the library against.

`manual` is the model batched by hand; `fold` batches calls by depth as the paper's prototype does.
Neither uses gluon_dynbatch; both differentiate with MXNet's own tape.
"""
