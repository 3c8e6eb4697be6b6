"""Checkpoints: optimizers go on bit for bit; what is damaged, by chance or by craft, is told."""

import io
import json
import os
import random

import gluonnlp
import mxnet as mx
import numpy as np
import pytest

import tree_lstm_relatedness as program
from relatedness.checkpoint import CheckpointError, first_line, read_checkpoint, write_checkpoint
from tests.experiments import test_program

TINY = [*test_program.TINY, *test_program.FIXED]


def make(optimizer, dtype="float32", **options):
    net = mx.gluon.nn.HybridSequential()
    # A trainer takes parameters by their names, and "dense10" comes before "dense9".
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


# GroupAdaGrad takes matrices only, and MXNet's "test" is none.
OTHERS = ("groupadagrad", "test")
KINDS = [(name, {}) for name in sorted(mx.optimizer.Optimizer.opt_registry) if name not in OTHERS]
KINDS += [
    ("sgd", {"momentum": 0.9}),
    ("nag", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "multi_precision": True, "dtype": "float16"}),
    ("sgd", {"multi_precision": True, "dtype": "float16"}),
    ("adam", {"multi_precision": True, "dtype": "float16"}),
]


@pytest.mark.filterwarnings("ignore:Accumulating with float16")
@pytest.mark.parametrize(("name", "options"), KINDS)
def test_an_optimizer_goes_on_bit_for_bit(tmp_path, name, options):
    def fresh():
        return make(name, learning_rate=0.01, **options)

    vocab = gluonnlp.Vocab(gluonnlp.data.Counter("aab"), padding_token=None, bos_token=None,
                           eos_token=None)  # fmt: skip
    net, trainer = fresh()
    middle = steps(net, trainer, 1)
    write_checkpoint(tmp_path / "c", net, trainer, vocab, {})
    whole = steps(net, trainer, 2)
    net, trainer = fresh()
    read_checkpoint(tmp_path / "c").restore(net, trainer)
    for one, other in zip(steps(net, trainer, 2), whole):
        assert one.tobytes() == other.tobytes()
        assert not np.isnan(one).any()
    assert any(one.tobytes() != before.tobytes() for one, before in zip(whole, middle))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            program.sys.modules["relatedness.training"], "draw_learning_curve", lambda *_: None
        )
        command = ["train", *TINY, "--epochs", "2", "--output", str(folder)]
        assert program.main(command) == 0
    return folder


def by_chance(content, rng):
    """Cut, flip, drop, repeat or blank some bytes."""
    at = rng.randrange(len(content))
    end = min(len(content), at + rng.randrange(1, 200))
    flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
    return rng.choice([
        content[:at],
        content[:at] + flipped + content[at + 1 :],
        content[:at] + content[end:],
        content[:end] + content[at:],
        content[:at] + bytes(255 - byte for byte in content[at:end]) + content[end:],
    ])  # fmt: skip


def test_bytes_that_change_by_chance_are_told(tmp_path, trained):
    content = (trained / "last").read_bytes()
    for seed in range(100):
        (tmp_path / "last").write_bytes(by_chance(content, random.Random(seed)))
        with pytest.raises(CheckpointError, match="last: "):
            read_checkpoint(tmp_path / "last")


class Runs:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def pickled(header, arrays):
    """An array of objects, with a pickle that makes a folder when it is read."""
    arrays[next(iter(arrays))] = np.array([Runs()], object)


#: Changes of the JSON and the arrays that a right checksum hides.
DAMAGES = [
    (pickled, "not a whole checkpoint"),
    (lambda header, arrays: header.pop("vocab"), "not a whole checkpoint"),
    # A model that would not fit into memory.
    (lambda header, arrays: header["state"]["settings"].update(hidden=10**9),
     "--hidden is 5 but the run to resume has 1000000000"),
    (lambda header, arrays: arrays.pop(min(arrays)), "does not fit the model"),
    (lambda header, arrays: arrays.pop(max(arrays)), "the optimizer's state of"),
    (lambda header, arrays: header["optimizer"].update(kind="Adam"),
     "written with the optimizer Adam"),
]  # fmt: skip


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("change", "reason"), DAMAGES)
def test_what_is_no_checkpoint_of_the_program_is_told(
    tmp_path, monkeypatch, trained, capsys, change, reason
):
    monkeypatch.chdir(tmp_path)
    with np.load(io.BytesIO((trained / "last").read_bytes().split(b"\n", 1)[1])) as archive:
        arrays = dict(archive)
    header, body = json.loads(arrays.pop("header").tobytes()), io.BytesIO()
    change(header, arrays)
    np.savez(body, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    (tmp_path / "last").write_bytes(first_line(body.getvalue()) + body.getvalue())
    capsys.readouterr()
    assert program.main(["train", *TINY, "--epochs", "3", "--output", ".", "--resume"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and reason in printed.err and printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_files_are_not_written_through_links(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f".c.{os.getpid()}.tmp").symlink_to(victim)
    net, trainer = make("sgd")
    vocab = gluonnlp.Vocab(gluonnlp.data.Counter("a"))
    write_checkpoint(tmp_path / "c", net, trainer, vocab, {})
    assert victim.read_text() == "kept" and not (tmp_path / "c").is_symlink()
