"""Autograd's modes as bits, and the element types that gradients have."""

#: Bits of the mode in which a call was made.
RECORDING, TRAINING = 1, 2

#: Element types that can have a gradient.
FLOATS = ("float16", "float32", "float64")
