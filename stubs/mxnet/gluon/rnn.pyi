from typing import Any

from .block import Block, HybridBlock

class RecurrentCell(Block):
    def forward(self, inputs: Any, states: Any) -> Any: ...

class ModifierCell(HybridBlock): ...
