from typing import Any, Callable, List

class Letters:
    values: Any
    urgent: int
    full: int
    delivered: int
    has_news: bool
    rests: bool
    due: float
    def take_all(self) -> List[Any]: ...

class Post:
    due: List[Any]
    has_firsts: bool
    values: int
    def put(self, mailbox: Letters, value: Any) -> int: ...
    def pour(self, mailbox: Letters, values: Any, convert: Callable[..., Any]) -> bool: ...
