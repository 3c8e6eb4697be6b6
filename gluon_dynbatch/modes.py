"""The modes of a call as bits, and the dtypes of floats."""

#: Bits of autograd's mode.
RECORDING, TRAINING = 1, 2
#: Bits of MXNet's NumPy semantics: ``mx.is_np_shape()``, and with it ``npx.is_np_array()``.
NUMPY_SHAPE, NUMPY_ARRAY = 4, 8
#: Bits that a mode has at most.
MODE_BITS = 4

#: Dtypes of floats.
FLOATS = ("float16", "float32", "float64")
