"""Other systems that run models one sample at a time or by hand, timed turn by turn with ours.

Each runs in a process of its own (`child`), which `suite.remote` starts and asks.
"""
