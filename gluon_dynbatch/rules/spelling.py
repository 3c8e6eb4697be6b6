"""How users write an operator: the name by which they call it, or a sign of Python.

MXNet has names of its own for what users write as ``x + 1``, ``mx.nd.contrib.foreach`` or
``mx.np.linalg.solve``: ``_plus_scalar``, ``_foreach`` and ``_npi_solve``.
"""

from __future__ import annotations

import re
from functools import lru_cache

#: How Python writes some operators, by a part of their names.
SIGNS = {
    "add": "+",
    "plus": "+",
    "sub": "-",
    "minus": "-",
    "mul": "*",
    "div": "/",
    "mod": "%",
    "power": "**",
    "equal": "==",
    "not_equal": "!=",
    "greater": ">",
    "greater_equal": ">=",
    "lesser": "<",
    "lesser_equal": "<=",
}
_PREFIXES = (
    ("_contrib_", "contrib."),
    ("_linalg_", "linalg."),
    ("_image_", "image."),
    ("_sample_unique_", "_sample_unique_"),
    ("_sample_", "sample_"),
    ("_random_pdf_", "random_pdf_"),
    ("_random_", "random."),
    ("_np_", ""),
)
#: Folders of ``mx.np``, with their operators.
_FOLDERS = {
    "np.linalg.": "cholesky eig eigh eigvals eigvalsh norm pinv solve svd tensorinv tensorsolve",
    "np.random.": "choice exponential gamma gumbel logistic multinomial normal pareto power "
    "rayleigh uniform weibull",
    "npx.random.": "bernoulli",
}
#: Endings of names that tell variants of one function of ``mx.np`` apart.
_VARIANTS = re.compile("_(scalar2?|[lr]scalar|scalar_rcond|int_axes|slice|tensor|n)$")
_OTHERS = {
    "_copy": "identity",
    "_foreach": "contrib.foreach",
    "_while_loop": "contrib.while_loop",
    "_cond": "contrib.cond",
    "_sample_unique_zipfian": "contrib.rand_zipfian",
    "_zeros_without_dtype": "zeros",
    "_np_copy": "np.copy",
    "_npi_boolean_mask_assign_scalar": "x[mask] = 1",
    "_npi_boolean_mask_assign_tensor": "x[mask] = y",
    "_npi_powerd": "np.random.power",
    "_npi_share_memory": "np.shares_memory",
    **{f"_np_{name}": f"np.{name}" for name in (
        "all", "any", "atleast_1d", "atleast_2d", "atleast_3d", "diagflat", "diagonal", "roll",
        "trace",
    )},
}  # fmt: skip


def spelling(op: str) -> str:
    """Return the name of an operator within ``mx.nd`` and ``mx.sym``, given its canonical name.

    >>> spelling("_linalg_gemm2"), spelling("_np_cumsum"), spelling("dot")
    ('linalg.gemm2', 'cumsum', 'dot')
    """
    for prefix, user_prefix in _PREFIXES:
        if op.startswith(prefix):
            return user_prefix + op[len(prefix) :]
    return op


@lru_cache(maxsize=1024)
def written(op: str) -> str:
    """Return how users write an operator, in messages, given its canonical name.

    >>> written("_plus_scalar"), written("elemwise_add"), written("_npi_solve")
    ('+', '+', 'np.linalg.solve')
    >>> written("broadcast_add"), written("_foreach"), written("_backward_gather_nd")
    ('broadcast_add', 'contrib.foreach', '_backward_gather_nd')
    """
    if op in _OTHERS:
        return _OTHERS[op]
    if op.startswith("_npi_"):
        name = _VARIANTS.sub("", re.sub(r"^r(?=\w+_scalar$)", "", op[len("_npi_") :]))
        folder = (folder for folder, names in _FOLDERS.items() if name in names.split())
        return next(folder, "np.") + name
    if op.startswith("_npx_"):
        return f"npx.{op[len('_npx_') :]}"
    number = re.match(r"_(r?)(\w+)_scalar$", op)
    if number:
        return SIGNS.get(number[2], f"{number[1]}{number[2]}")
    if op.startswith("elemwise_"):  # what signs are in blocks
        return SIGNS[op[len("elemwise_") :]]
    name = spelling(op)
    return name if name.startswith("_backward_") else name.lstrip("_")


def signed(name: str) -> str:
    """Return a sign for the name of an operator that users mostly write as one.

    >>> signed("broadcast_sub"), signed("np.add"), signed("+"), signed("np.exp")
    ('-', '+', '+', 'np.exp')
    """
    known = re.match(r"(?:broadcast_|np\.)(\w+)$", name)
    return SIGNS.get(known[1], name) if known else name
