"""Cases of the operators on padded sequences, fused attention and fused recurrent layers."""

from __future__ import annotations

from itertools import product
from typing import Iterator

from .interpreter import Array, Case, R, case

BOTH = "BB BS SB"
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}


def mixtures(inputs: int, shared: int = -1) -> str:
    """List all patterns of batched and shared inputs, one of which may have to be shared."""
    found = ["".join(letters) for letters in product("BS", repeat=inputs)]
    return " ".join(p for p in found if "B" in p and (shared < 0 or p[shared] == "S"))


def sequences(a: int, b: int, c: int) -> Iterator[Case]:
    every = {"rows": "BB", "ones": "BS SB", "stack": BOTH}
    for op in ("SequenceMask", "SequenceLast", "SequenceReverse"):
        value = {"value": 3} if op == "SequenceMask" else {}
        for tail in ((), (c,), (2, c)):
            lengths = {"use_sequence_length": True, **value}
            yield case(op, Array((a, b, *tail)), Array((b,), "length", a), stack=BOTH, **lengths)
            # MXNet corrupts its heap when it differentiates SequenceLast without lengths.
            plain = {"gradient": op != "SequenceLast", **value}
            yield case(op, Array((a, b, *tail)), stack="B", **plain)
            if op != "SequenceReverse":
                data, length = Array((R, a, *tail)), Array((R,), "length", a)
                yield case(op, data, length, axis=1, **lengths, **every)
                yield case(op, data, axis=1, rows="B", stack="B", **plain)


def attention(a: int, b: int, c: int) -> Iterator[Case]:
    heads, size = 2, 3
    contrib = "_contrib_interleaved_matmul"
    joint = Array((a, b, heads * size * 3))
    yield case(f"{contrib}_selfatt_qk", joint, heads=heads, stack="B")
    own = Array((b * heads, a, a))
    yield case(f"{contrib}_selfatt_valatt", joint, own, heads=heads, stack=BOTH)
    query, memory = Array((a, b, heads * size)), Array((c, b, heads * size * 2))
    yield case(f"{contrib}_encdec_qk", query, memory, heads=heads, stack=BOTH)
    other = Array((b * heads, a, c))
    yield case(f"{contrib}_encdec_valatt", memory, other, heads=heads, stack=BOTH)


def recurrent(a: int, b: int, c: int) -> Iterator[Case]:
    for mode, gates in GATES.items():
        for layers, both_ways in ((1, False), (2, True)):
            ways = 2 if both_ways else 1
            size = 0
            for layer in range(layers):
                width = c if layer == 0 else ways * 2
                size += ways * gates * 2 * (width + 2 + 2)
            states = [Array((layers * ways, b, 2))] * (2 if mode == "lstm" else 1)
            merged = mixtures(2 + len(states), shared=1)
            yield case("RNN", Array((a, b, c)), Array((size,), "small"), *states, mode=mode,
                       state_size=2, num_layers=layers, bidirectional=both_ways,
                       state_outputs=both_ways, stack=merged)  # fmt: skip
    size = 4 * 2 * (c + 2 + 2) + 4 * 2 * (2 + 2 + 2)
    states = [Array((2, b, 2))] * 2
    given = {"mode": "lstm", "state_size": 2, "num_layers": 2, "p": 0.5, "gradient": False}
    merged = mixtures(4, shared=1)
    yield case("RNN", Array((a, b, c)), Array((size,), "small"), *states, **given, stack=merged,
               random=True)  # fmt: skip
    yield case("RNN", Array((a, b, c)), Array((size,), "small"), *states, **given, stack=merged,
               training=False)  # fmt: skip


def losses(a: int, b: int, c: int) -> Iterator[Case]:
    scores, labels = Array((a + 3, b, c + 2)), Array((b, 2), "length", c)
    yield case("CTCLoss", scores, labels, stack=BOTH)
    yield case("CTCLoss", scores, labels, blank_label="last", stack=BOTH)
    whole, some = Array((b,), "full", a + 3), Array((b,), "length", 2)
    yield case("CTCLoss", scores, labels, whole, some, use_data_lengths=True,
               use_label_lengths=True, stack=mixtures(4))  # fmt: skip
    yield case("CTCLoss", scores, labels, some, use_label_lengths=True, stack=mixtures(3))


def cases(a: int, b: int, c: int) -> Iterator[Case]:
    for family in (sequences, attention, recurrent, losses):
        yield from family(a, b, c)
