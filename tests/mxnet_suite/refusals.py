"""Why tests of MXNet that pass plain may fail in a scope: reasons that the pages document."""

import re
from typing import NamedTuple


class Refusal(NamedTuple):
    """A documented reason."""

    #: Pattern of the error, as ``kind: message``.
    error: str
    #: Page that documents it, and a text of the section that does.
    page: str
    section: str
    #: Pattern of the tests that may fail so, as ``module.test``.
    tests: str = ".*"


REFUSALS = [
    Refusal(
        r"ArgumentError: an array of mx\.np cannot be batched", "docs/errors.md", "## ArgumentError"
    ),
    Refusal(
        r"ArgumentError: an array of storage type '(csr|row_sparse)' cannot be recorded",
        "docs/errors.md",
        "## ArgumentError",
    ),
    Refusal(
        r"GradientError: gradients of gradients through a batching scope are not supported",
        "docs/errors.md",
        "## GradientError",
    ),
    # Two losses of one flush, and a backward pass for each.
    Refusal(
        r"GradientError: an array is not in a graph: .* backward has already freed a graph",
        "docs/limits.md",
        "**One backward.**",
    ),
    # Sums of 65,536 products and more: rounding errors of MXNet itself exceed this tolerance.
    Refusal(
        r"AssertionError: \s*Items are not equal:\s*Error \d\.\d+ exceeds tolerance rtol=1\.0+e-05",
        "docs/faq.md",
        "Sums have another order",
        r"test_gluon\.test_(conv2d_16c|reshape_dense_slice_dense)",
    ),
    # An array that is read only detached gets a gradient, of zeros.
    Refusal(
        r"AssertionError: $",
        "docs/limits.md",
        "**Zero gradients.**",
        r"test_autograd\.test_detach_updated_grad",
    ),
    # The test counts the nodes of a hybridized block in the tape.
    Refusal(r"AssertionError: $", "docs/limits.md", "**MXNet's tape**", r"test_gluon\.test_inline"),
    # The tests compute arrays that cannot be computed, and read no value.
    Refusal(
        r"(?s)MXNetError: .*scale parameter in gaussian has to be positive",
        "docs/limits.md",
        "**Errors of MXNet's engine**",
        r"test_exc_handling\.test_exc_(imperative|gluon)",
    ),
    # The tests expect that a hybridized block refuses a number, or another structure.
    Refusal(
        r"AssertionError: ValueError not raised by <lambda>",
        "docs/errors.md",
        "A call takes arrays of `mx.nd` or `mx.np`, numbers, strings",
        r"test_gluon\.test_hybrid_block_(hybrid_no_hybrid|none_args)",
    ),
]


def documented(test, result):
    """Return the reason for which a test may fail as it did, or None."""
    error = f"{result['kind']}: {result['message']}"
    for refusal in REFUSALS:
        if re.fullmatch(refusal.tests, test) and re.match(refusal.error, error):
            return refusal
    return None
