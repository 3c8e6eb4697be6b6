"""Other systems that run models one sample at a time or by hand, timed turn by turn with ours.

Each runs in a process of its own (`child`), which `suite.remote` starts and asks; the environment
of the peers has no MXNet. Samples and first parameters go over as files (`task`), the numbers of
the samples of each minibatch through a pipe.
"""
