"""Segments in, kernels out: what a launch runs as few native steps instead of many operators.

Read `expression` first, then `express` and `operators` (what MXNet's operators are as expressions),
`derivative`, and `step` with `compile`.
"""
