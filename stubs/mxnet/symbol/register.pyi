from typing import Any, Optional

def _symbol_creator(
    handle: Optional[int], args: Any, kwargs: Any, keys: Any, vals: Any, name: str, is_np_op: bool
) -> Any: ...
