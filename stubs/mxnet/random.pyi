from typing import Union

from .context import Context

def seed(seed_state: int, ctx: Union[str, Context] = "all") -> None: ...
