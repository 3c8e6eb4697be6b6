"""Checkpoints: optimizers go on bit for bit; what is damaged, by chance or by craft, is told."""

import gc
import hashlib
import json
import os
import pickle
import random
import zipfile

import gluonnlp
import mxnet as mx
import numpy as np
import pytest

import tree_lstm_relatedness as program
from relatedness.checkpoint import CheckpointError, read_checkpoint, write_checkpoint

TINY = ["--limit", "12", "--embedding-size", "6", "--hidden", "5", "--similarity-hidden", "4",
        "--batch-size", "4", "--lr", "0.1", "--granularity", "block", "--policy", "depth",
        "--analysis-budget", "none"]  # fmt: skip
DAMAGES = 200


def make(optimizer, dtype="float32", **options):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, in_units=2), mx.gluon.nn.Dense(1, in_units=3))
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
@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_goes_on_bit_for_bit(tmp_path, name, options, scheduled):
    def fresh():
        more = dict(options)
        if scheduled:
            more["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.01)
        return make(name, learning_rate=0.01, **more)

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


def test_another_optimizer_is_refused(tmp_path):
    net, trainer = make("adam")
    steps(net, trainer, 1)
    vocab = gluonnlp.Vocab(gluonnlp.data.Counter("a"))
    write_checkpoint(tmp_path / "c", net, trainer, vocab, {})
    net, trainer = make("sgd")
    with pytest.raises(CheckpointError, match="c: written with the optimizer Adam"):
        read_checkpoint(tmp_path / "c").restore(net, trainer)


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


def taken_apart(content):
    _, header, data = content.split(b"\n", 2)
    return json.loads(header), data


def sealed(header, data, version=3):
    """Put a checkpoint together whose checksums are right, whatever is in it."""
    header["sha256"] = hashlib.sha256(data).hexdigest()
    line = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b"\n"
    checksum = hashlib.sha256(line).hexdigest()
    return f"gluon_dynbatch checkpoint {version} {checksum}\n".encode() + line + data


def places(value, path=()):
    """Find all places of a tree, but those where anything may stand."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        if (*path, key) not in (("sha256",), ("trainer", "schedule")):
            yield value, key
            if isinstance(item, (dict, list)):
                yield from places(item, (*path, key))


def crafted(content, rng):
    """Leave out or replace something, with right checksums."""
    header, data = taken_apart(content)
    top = rng.choice([key for key in header if key != "sha256"])
    inside = list(places(header[top], (top,)))
    where, key = rng.choice([(header, top), *inside, *inside])
    odd = rng.choice([None, {"odd": [1]}, [["odd"]], float("nan"), [[]] * 3])
    if odd is None:
        del where[key]
    else:
        where[key] = odd
    return sealed(header, data)


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


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def resumed(folder, capsys):
    """Go on with a damaged checkpoint: one line, exit status 2, and every file as it was."""
    before = files(folder)
    capsys.readouterr()
    status = program.main(["train", *TINY, "--epochs", "3", "--output", str(folder), "--resume"])
    printed = capsys.readouterr()
    assert files(folder) == before
    assert (status, printed.out) == (2, ""), printed.err
    assert printed.err.startswith(f"error: {folder / 'last'}: ") and printed.err.count("\n") == 1
    return printed.err


@pytest.fixture()
def frozen():
    """Have the collections of garbage, which loaders ask for, pass over what is there already."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quick", "frozen")
def test_damaged_checkpoints_end_in_one_line(tmp_path, trained, capsys):
    """Every tenth by the command line, the others past it, as reading options takes longer."""
    content = (trained / "last").read_bytes()
    command = ["train", *TINY, "--epochs", "3", "--output", str(tmp_path), "--resume"]
    args = program.make_parser().parse_args(command)
    for seed in range(DAMAGES):
        rng = random.Random(seed)
        damaged = (by_chance, crafted)[seed % 2](content, rng)
        assert damaged != content
        (tmp_path / "last").write_bytes(damaged)
        try:
            if seed % 10 < 2:
                resumed(tmp_path, capsys)
            else:
                with pytest.raises(CheckpointError, match="last: "):
                    program.train(args)
                assert files(tmp_path) == {"last": damaged}
        except Exception as error:
            raise AssertionError(f"damage {seed}") from error


def outside(path, content):
    target = path.parent.parent / "outside"
    target.write_bytes(content)
    path.symlink_to(target)


def declared(path, content):
    """Sizes of which no machine has as much memory."""
    header, data = taken_apart(content)
    header["arrays"][0]["shape"] = [10**9, 10**9]
    path.write_bytes(sealed(header, data))


def greater(path, content):
    """Settings of a model that would not fit into memory."""
    header, data = taken_apart(content)
    header["state"]["settings"]["hidden"] = 10**9
    path.write_bytes(sealed(header, data))


def deep(path, content):
    header = b"[" * 200_000
    line = f"gluon_dynbatch checkpoint 3 {hashlib.sha256(header + b'%c' % 10).hexdigest()}\n"
    path.write_bytes(line.encode() + header + b"\n")


class Runs:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def older(path, content):
    """As the older versions wrote them, with a pickle that makes a folder when it is read."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state.json", '{"format": 2}')
        archive.writestr("trainer.states", pickle.dumps(Runs()))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (outside, "a symbolic link to another folder; name the file itself"),
        (lambda path, content: path.symlink_to("nowhere"), "No such file or directory"),
        (lambda path, content: path.symlink_to("last"), "symbolic link"),
        (lambda path, content: path.mkdir(), "Is a directory"),
        (lambda path, content: os.mkfifo(path), "not a file"),
        (lambda path, content: path.write_bytes(b""), "not a whole checkpoint"),
        (declared, "its size is not that of its arrays"),
        (deep, "not a whole checkpoint"),
        (older, "written by an older version, whose checkpoints could run code"),
        (lambda path, content: path.write_bytes(sealed(*taken_apart(content), 4)),
         "written in format 4; this version reads format 3"),
    ],
)  # fmt: skip
def test_what_is_no_checkpoint_is_told(tmp_path, monkeypatch, trained, capsys, damage, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    damage(tmp_path / "run" / "last", (trained / "last").read_bytes())
    assert reason in resumed(tmp_path / "run", capsys)
    arguments = ["--limit", "12", "--checkpoint", str(tmp_path / "run" / "last")]
    assert program.main(["predict", *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("quick")
def test_a_model_greater_than_its_file_is_never_made(tmp_path, trained, capsys):
    greater(tmp_path / "last", (trained / "last").read_bytes())
    assert program.main(["predict", "--limit", "12", "--checkpoint", str(tmp_path / "last")]) == 2
    assert "does not fit the model" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_a_damaged_list_of_steps_is_told_and_kept(tmp_path, trained, capsys):
    (tmp_path / "last").write_bytes((trained / "last").read_bytes())
    damaged = (trained / "steps.jsonl").read_text().replace('"step": 2', '"step": "two"', 1)
    (tmp_path / "steps.jsonl").write_text(damaged)
    command = ["train", *TINY, "--epochs", "3", "--output", str(tmp_path), "--resume"]
    assert program.main(command) == 2
    assert "steps.jsonl:2: no step of this run" in capsys.readouterr().err
    assert (tmp_path / "steps.jsonl").read_text() == damaged


def test_files_are_not_written_through_links(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f".c.{os.getpid()}.tmp").symlink_to(victim)
    net, trainer = make("sgd")
    vocab = gluonnlp.Vocab(gluonnlp.data.Counter("a"))
    write_checkpoint(tmp_path / "c", net, trainer, vocab, {})
    assert victim.read_text() == "kept" and not (tmp_path / "c").is_symlink()
