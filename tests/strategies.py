"""Random programs: minibatches of trees, and programs of the fuzzer."""

from functools import lru_cache

import mxnet as mx
from hypothesis import strategies as st

from tests.cells import WORDS, Cells, ready, run_tree
from tests.fuzz.harness import Case, Setting, run
from tests.fuzz.programs import Program, programs


@lru_cache(maxsize=None)
def cells(dtype):
    """Return the cells of a dtype; they are cached, so that symbols are built once."""
    net = ready(Cells(prefix=f"cells_{dtype}_"), 0.8)
    net.cast(dtype)
    return net


DTYPES = st.sampled_from(["float32", "float32", "float64"])
#: Trees of random arity: a word, or a list of subtrees.
TREES = st.recursive(
    st.integers(0, WORDS - 1), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=10
)


@st.composite
def tree_batches(draw):
    """Draw a minibatch of trees, some of them equal, that run through a child-sum cell."""
    net = cells(draw(DTYPES))
    pool = draw(st.lists(TREES, min_size=1, max_size=3))
    trees = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=6))
    return Case(lambda tree: net.head(run_tree(net, tree)[0]), trees, [], net)


def loop_works(case):
    """Return whether MXNet can compute the gradients of the loop, which some operators refuse."""
    try:
        run(case, Setting("train"))
    except mx.MXNetError:
        return False
    return True


PROGRAMS = st.one_of(tree_batches(), programs(tame=True).map(Program.case).filter(loop_works))
