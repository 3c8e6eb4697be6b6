"""Autograd's modes as bits, and the dtypes that have gradients."""

#: Bits of autograd's mode.
RECORDING, TRAINING = 1, 2

#: Dtypes of arrays that can have gradients.
FLOATS = ("float16", "float32", "float64")
