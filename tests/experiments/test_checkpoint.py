"""Checkpoints: optimizers continue bit for bit; damage is detected."""

import random

import gluonnlp
import mxnet as mx
import numpy as np
import pytest

from command import UsageError
from relatedness.checkpoint import read_checkpoint, write_checkpoint


def make(optimizer, dtype="float32", **options):
    net = mx.gluon.nn.HybridSequential()
    # A trainer sorts parameters by name, so that "dense10" would precede "dense9".
    net.add(mx.gluon.nn.Dense(3, in_units=2, prefix="first_"))
    net.add(mx.gluon.nn.Dense(1, in_units=3, prefix="second_"))
    net.cast(dtype)
    mx.random.seed(3)
    net.initialize(mx.init.Xavier())
    net[0].bias.grad_req = "null"
    optimizer = mx.optimizer.create(optimizer, **options)
    return net, mx.gluon.Trainer(net.collect_params(), optimizer, update_on_kvstore=False)


def steps(net, trainer, epoch):
    parameters = list(net.collect_params().values())
    mx.random.seed(epoch)
    for _ in range(3):
        shifts = [mx.nd.random.uniform(shape=p.shape).astype(p.dtype) for p in parameters]
        with mx.autograd.record():
            loss = sum(((p.data() - shift) ** 2).sum() for p, shift in zip(parameters, shifts))
        loss.backward()
        trainer.step(4)
    return [parameter.data().asnumpy() for parameter in parameters]


VOCAB = gluonnlp.Vocab(gluonnlp.data.Counter("aab"), bos_token=None, eos_token=None)
# GroupAdaGrad accepts only matrices, and MXNet's "test" is not an optimizer.
EXCLUDED = {"groupadagrad", "test"}
OPTIMIZERS = [(name, {}) for name in sorted({*mx.optimizer.Optimizer.opt_registry} - EXCLUDED)]
OPTIMIZERS += [
    ("sgd", {"momentum": 0.9}),
    ("nag", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "multi_precision": True, "dtype": "float16"}),
    ("sgd", {"multi_precision": True, "dtype": "float16"}),
    ("adam", {"multi_precision": True, "dtype": "float16"}),
]


@pytest.mark.filterwarnings("ignore:Accumulating with float16")
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_an_optimizer_continues_bit_for_bit(tmp_path, name, options):
    net, trainer = make(name, learning_rate=0.01, **options)
    saved = steps(net, trainer, 1)
    write_checkpoint(tmp_path / "c", net, trainer, VOCAB, {})
    expected = steps(net, trainer, 2)
    net, trainer = make(name, learning_rate=0.01, **options)
    read_checkpoint(tmp_path / "c").restore(net, trainer)
    for resumed, uninterrupted in zip(steps(net, trainer, 2), expected):
        assert resumed.tobytes() == uninterrupted.tobytes()
        assert not np.isnan(resumed).any()
    assert any(after.tobytes() != before.tobytes() for after, before in zip(expected, saved))


def damage(content, rng):
    """Truncate, flip, drop or repeat some bytes."""
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.randrange(1, 200))
    rest = content[start:]
    flipped = bytes([rest[0] ^ 1 << rng.randrange(8)]) + rest[1:]
    return content[:start] + rng.choice([b"", flipped, content[end:], content[start:end] + rest])


def test_damaged_checkpoints_are_rejected(tmp_path):
    write_checkpoint(tmp_path / "last", *make("sgd"), VOCAB, {})
    content = (tmp_path / "last").read_bytes()
    for seed in range(100):
        (tmp_path / "last").write_bytes(damage(content, random.Random(seed)))
        with pytest.raises(UsageError, match="last: "):
            read_checkpoint(tmp_path / "last")
