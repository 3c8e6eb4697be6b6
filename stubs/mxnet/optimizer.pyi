from typing import Any, Dict, List, Optional, Sequence, Type, TypeVar

_Class = TypeVar("_Class", bound=Type[Optimizer])

class Optimizer:
    aggregate_num: int
    rescale_grad: float
    clip_gradient: Optional[float]
    _index_update_count: Dict[int, int]
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getstate__(self) -> Dict[str, Any]: ...
    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None: ...
    def _update_count(self, index: Sequence[int]) -> None: ...
    def _get_lrs(self, indices: Sequence[int]) -> List[float]: ...
    def _get_wds(self, indices: Sequence[int]) -> List[float]: ...

class AdaGrad(Optimizer):
    float_stable_eps: float

class Adam(Optimizer):
    beta1: float
    beta2: float
    epsilon: float

def register(klass: _Class) -> _Class: ...
