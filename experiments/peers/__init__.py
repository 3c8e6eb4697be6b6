"""Other systems that run models one sample at a time or by hand, timed turn by turn with ours.

Each runs in a process of its own (`child`), which a driver in this project's environment starts and
asks; theirs has no MXNet. Samples and first parameters go over as files (`task`), the numbers of the
samples of each minibatch over a pipe.
"""
