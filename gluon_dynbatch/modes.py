"""Autograd's modes as bits, and the dtypes of floats."""

#: Bits of autograd's mode.
RECORDING, TRAINING = 1, 2

#: Dtypes of floats.
FLOATS = ("float16", "float32", "float64")
