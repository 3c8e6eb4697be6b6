"""Models with the samples they run on, for experiments that compare ways of running them."""
