"""Cases of operators of ``mx.np`` that are not written with those of ``mx.nd``."""

from gluon_dynbatch import rules

from .interpreter import NEVER, Array, R, case

OWN = sorted(op for op in rules.TABLE if op.startswith("_npi_"))
FLOATS = [op for op in OWN if "bitwise" not in op and "lcm" not in op]
SCALAR = [op for op in OWN if op.endswith("_scalar")]
BINARY = ["arctan2", "copysign", "bitwise_and", "bitwise_or", "bitwise_xor", "lcm"]
UNARY = [op for op in OWN if op not in (*SCALAR, "_npi_tril")
         and op[len("_npi_") :] not in BINARY]  # fmt: skip


def elements(a, b, c):
    for op in SCALAR:
        kind = "positive" if op in FLOATS else "index32"
        yield case(op, Array((R, a), kind, 5), scalar=2)
    for op in UNARY:
        yield case(op, Array((R, a), "normal" if op in FLOATS else "index32", 5))
    for op in (f"_npi_{name}" for name in BINARY):
        kind = "positive" if op in FLOATS else "index32"
        full, row = Array((R, a, b), kind, 5), Array((b,), kind, 5)
        yield case(op, full, full)
        yield case(op, full, row)
        yield case(op, Array((a, 1), kind, 5), full)


def triangles(a, b, c):
    yield case("_npi_tril", Array((R, a, b)), k=1)
    yield case("_npi_tril", Array((a, b)), k=-1, rows="")
    yield case("_npi_tril", Array((a,)), **NEVER)


FAMILIES = elements, triangles
