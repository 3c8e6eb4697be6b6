"""Every test here does something wrong, or rare; none may leave anything behind."""

from tests.common import net, nothing_is_left_behind

__all__ = ["net", "nothing_is_left_behind"]
