"""Requests of many threads and tasks, run together as samples that join and leave at every flush.

In: samples, from clients.  Out: futures and streams.  Read `batcher.py` (the public class),
`worker.py` (the queue, and the thread that runs what is in it), `rounds.py` (requests as fibers),
`cohorts.py` (which of them share flushes), and `answers.py` and `clients.py` (what they return, on
its way to clients).  Clients of other processes come in by `doors.py` and `wires.py`, and have
`remote.py` at their end.
"""
