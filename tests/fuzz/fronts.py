"""The front ends of random programs: how programs spell what they do."""

from functools import partial
from typing import Callable, Dict, NamedTuple, Sequence, Tuple

from . import operators, recipes, steps
from .recipes import CHAINS


class Front(NamedTuple):
    """What programs of a front end call; see `recipes` and `steps` for the kinds of expressions."""

    name: str
    #: `F` in functions of a sample.
    F: str
    #: Returns operators that do not crash MXNet, unlike some others; the first time takes seconds.
    tame: Callable[[], Sequence[str]]
    chains: Sequence[str]
    eager: Sequence[str]
    joined: Sequence[str]
    typed: Sequence[str]
    pairs: Sequence[str]
    reads: Sequence[str]
    writes: Sequence[str]
    states: Sequence[Tuple[str, Sequence[str]]]
    #: Other expressions, by what they do.
    forms: Dict[str, str]

    def sum(self, terms):
        """Return the sum of expressions."""
        if self.name == "nd":
            return f"F.add_n({', '.join(terms)})"
        return f"({' + '.join(terms)})"


def numpy(texts):
    """Spell expressions of ``mx.nd`` with ``mx.np``; the functions have the same names there."""
    return [text.replace("F.", "F.np.").replace(".asscalar()", ".item()") for text in texts]


ND = Front(
    *("nd", "mx.nd", operators.TAME.split, recipes.CHAINS, recipes.EAGER, recipes.JOINED),
    *(steps.TYPED, steps.PAIRS, steps.READS, steps.WRITES, steps.STATES),
    {
        **{name: f"F.{name}({{}})" for name in ("tanh", "identity", "zeros_like")},
        "to device": "{}.as_in_context({})",
        "clip": "F.clip({}, 1, 3)",
        "cast": "F.cast({}, dtype={!r})",
        "to integers": "F.cast(F.clip({} * 4, 0, 100), dtype={!r})",
    },
)
#: Expressions of one array that both have.
_SHARED = [text for text in CHAINS if "F." not in text]
_NP_CHAINS = [
    *_SHARED,
    *numpy(["F.tanh({})", "F.exp(-F.square({}))", "F.flip({}, 0)", "F.copy({})", "F.abs({})",
            "F.clip({}, -0.5, 0.5)", "F.cumsum({}, axis=0)", "F.sort({}, axis=-1)",
            "F.negative({})",
            "F.where({0} > 0, {0}, {0} * 0.1)", "F.maximum({}, 0.1)", "F.log1p(F.abs({}))",
            "F.expand_dims({}, -1)", "F.squeeze({})", "F.mean({}, axis=-1, keepdims=True)",
            "F.sum({})", "F.max({}, axis=0)", "F.transpose({})", "F.stack([{0}, {0} * 2])",
            "F.concatenate([{0}, {0} + 1], axis=-1)", "F.dot({0}, F.transpose({0}))",
            "F.sum({}, axis=(0, 1))",
            "F.einsum('ij,ij->i', {0}, {0})", "F.sqrt(F.sum({0} * {0}) + 1)",
            "F.swapaxes({}, 0, -1)", "F.zeros_like({})", "F.split({}, 2, axis=-1)",
            "F.tile({}, 2)"]),
    "F.npx.sigmoid({})", "F.npx.relu({})", "F.npx.softmax({})", "F.npx.log_softmax({}, axis=-1)",
    "F.npx.activation({}, act_type='softrelu')", "F.npx.leaky_relu({}, act_type='elu')",
    "F.npx.reshape({}, (-2, -1))", "(({}).as_nd_ndarray() * 2).as_np_ndarray()",
    "F.tanh(({}).as_nd_ndarray()).as_np_ndarray()",
]  # fmt: skip
_NP_EAGER = [
    *(text for text in recipes.EAGER if text.startswith("{}[")), "{}[..., None]", "{}[()]",
    "{}[1:1]", "{}[None, -1]", "{0}[{0} > 0]",
    *(f"{{}}.{call}" for call in (
        "sum()", "mean(axis=0)", "max(axis=-1)", "min()", "reshape(-1)", "reshape((1, -1))",
        "reshape(-1, 1)", "flatten()", "transpose()", "T", "astype('float64')", "copy()", "abs()",
        "clip(-1, 1)", "argmax(axis=-1)", "argmax()", "detach()", "reshape_view(-1)", "std()",
        "squeeze()", "cumsum()", "repeat(2)", "swapaxes(0, -1)", "prod()", "as_in_ctx(mx.cpu())",
        "astype('float16')",
    )),
    "{0}.reshape({0}.shape[::-1])", "{0} + F.np.zeros({0}.shape[-1:], dtype={0}.dtype)",
    "F.np.linalg.norm({})", "{0} @ {0}.T", "F.np.ones(()) * {}", "mx.np.array({}.tolist())",
    "{0} + mx.np.full((1,), 0.5, dtype={0}.dtype)", "np.mean({})", "np.concatenate([{0}, {0}])",
    "F.np.vstack([{0}, {0}])", "{0} * mx.np.arange({0}.shape[-1])", "{0} - {0}.mean()",
    "F.np.where({0} > 0, {0}, F.np.zeros_like({0}))", "sum(row.sum() for row in {})",
    "F.np.argmax({}, axis=0)", "F.np.outer({0}, {0})", "abs({})", "F.np.array_split({}, 2)",
    "mx.np.array({})", "F.np.atleast_2d({})", "F.np.ones_like({})", "F.np.hsplit({}, 1)",
    "F.np.any({})", "F.np.all({} > 0)",
]  # fmt: skip
_NP_JOINED = numpy([
    "sum(F.tanh(c) for c in children)",
    "F.max(F.stack(children), axis=0)",
    "F.mean(F.concatenate(children, axis=0), axis=0, keepdims=True)",
    "sum(F.npx.sigmoid(a0 + c) * c for c in children)".replace("F.npx", "npx"),
    "F.tanh(sum(children) + a0)",
    "F.tanh(F.stack([a0, *children], axis=0).sum(axis=0))",
])  # fmt: skip
_NP_TYPED = [
    *(text for text in steps.TYPED if "F." not in text),
    *numpy(["F.sum({}, axis=0)", "F.reshape({}, (-1,))", "F.abs({})", "F.square({})",
            "F.clip({}, 1, 3)", "F.flip({}, 0)", "F.tile({}, (2,))", "F.expand_dims({}, axis=0)",
            "F.argmax({}, axis=0)", "F.zeros_like({})", "F.tanh({})", "F.sort({}, axis=-1)",
            "F.mean({}, axis=0)", "F.copy({})", "F.any({})", "F.all({}, axis=0)",
            "F.prod({} + 1, axis=0)", "F.max({})", "F.add({0}, {0}[0:1])", "F.logical_not({})",
            "F.cumsum({}, axis=0)", "F.where({0}, {0}, {0})", "F.std({})", "F.einsum('ij->j', {})",
            "F.exp({})"]),
    "F.npx.relu({})", "F.npx.one_hot({}, depth=3)", "{} / 2", "{} ** 2", "{} % 2", "{} * 1.5",
    "{}.astype('bool')", "{} != 0", "{} == 1", "~({} > 1)", "{0}.item() if {0}.size == 1 else {0}",
    "{}.astype('float32')", "{} <= 2",
]  # fmt: skip
_NP_PAIRS = [
    *(text for text in steps.PAIRS if "F." not in text),
    *numpy(["F.maximum({}, {})", "F.concatenate([{}, {}], axis=0)", "F.stack([{}, {}])",
            "F.where({0} > 1, {0}, {1})", "F.multiply({}, {})", "F.dot({}, {}.T)",
            "F.tensordot({}, {}, axes=2)", "F.where({0}, {1}, {0})", "F.add({}, {})",
            "F.einsum('ij,kj->ik', {}, {})", "F.matmul({}, {}.T)"]),
    "{} / {}", "{} > {}", "({} > 1) & ({} > 1)", "({} > 1) * {}",
]  # fmt: skip
_NP_READS = [
    *numpy(["{} * float({}.sum())", "{0}[int({1}.reshape(-1).argmax()) % len({0})]",
            "F.take({}, F.argmax({}.reshape((1, -1)), axis=1), axis=0, mode='clip')",
            "{}[F.argmax({}.reshape((1, -1)), axis=1) * 0]", "settle({}) + F.sum({})",
            "{0}[np.argsort({1}.asnumpy().ravel())[:2] % len({0})]",
            "F.concatenate([row.reshape(-1) * 2 for row in {}[0:2]]) + {}.sum()",
            "{} * (2 if {}.sum() > 0 else 3)", "{} * len(str({}.asnumpy().sum() > 0))",
            "{} + F.array({}.asnumpy()[..., 0]).astype({dtype!r}).sum()",
            "{0}[{1}.sum(axis=0)[:0].size]", "{} if bool(({} > 0).any()) else 2",
            "{} * {}.tolist()[0][0]", "F.nonzero({1})[0].sum() * 0.1 * {0}",
            "{} * {}.sum().item()"]),
]  # fmt: skip
_NP_WRITES = numpy([
    "{}[:] = 0.5", "{}[0:1] = 2", "{} += 1", "{} *= {}", "{}[:] = {}", "{0}[-1] = {0}[0]",
    "F.tanh({1}, out={0})", "{0}.reshape_view(-1)[0:1] = 3", "{1}.copyto({0})", "{} -= 1",
    "{}[...] = 2", "{}[0, 0] = 7", "{0}[{0} > 0] = 0.1", "{0}[{1} > 0] = -0.1", "{} /= 2",
    "{0}[0][:] = {1}[0]", "F.add({1}, {1}, out={0})", "{0}.as_nd_ndarray()[0:1] = 4",
])  # fmt: skip
NP = Front(
    *("np", "NUMPY", partial(operators.generated, "np"), _NP_CHAINS, _NP_EAGER),
    *([text.replace("npx", "F.npx") for text in _NP_JOINED], _NP_TYPED, _NP_PAIRS, _NP_READS),
    *(_NP_WRITES, [(read, numpy(changes)) for read, changes in
                   zip(numpy(read for read, _ in steps.STATES), (c for _, c in steps.STATES))]),
    {
        **{name: f"F.np.{name}({{}})" for name in ("tanh", "zeros_like")},
        "identity": "F.np.copy({})",
        "to device": "{}.as_in_ctx({})",
        "clip": "F.np.clip({}, 1, 3)",
        "cast": "F.npx.cast({}, dtype={!r})",
        "to integers": "F.npx.cast(F.np.clip({} * 4, 0, 100), dtype={!r})",
    },
)  # fmt: skip
FRONTS = {front.name: front for front in (ND, NP)}
