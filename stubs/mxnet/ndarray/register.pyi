from typing import Any

def _imperative_invoke(
    handle: int, ndargs: Any, keys: Any, vals: Any, out: Any, is_np_op: bool, output_is_list: bool
) -> Any: ...
