from threading import local

class _NumpyArrayScope:
    _current: local

def is_np_shape() -> bool: ...
