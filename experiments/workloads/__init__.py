"""Models with their samples, for experiments that compare ways of running them."""
