"""Compile segments to kernels: a few native steps per launch instead of many operators.

Read `expression` first, then `express` and `operators` (from MXNet's operators to expressions),
`derivative`, and `step` with `compile`.
"""
