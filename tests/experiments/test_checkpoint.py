"""Checkpoints: optimizers go on bit for bit; what is damaged, by chance or by craft, is told."""

import gc
import hashlib
import io
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
from relatedness.checkpoint import CheckpointError, packed, read_checkpoint, write_checkpoint

TINY = ["--limit", "12", "--embedding-size", "6", "--hidden", "5", "--similarity-hidden", "4",
        "--batch-size", "4", "--lr", "0.1", "--granularity", "block", "--policy", "depth",
        "--analysis-budget", "none"]  # fmt: skip
DAMAGES = 100


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
    with np.load(io.BytesIO(content.split(b"\n", 1)[1])) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(arrays.pop("header").tobytes()), arrays


def sealed(body, version=4):
    """Put a checkpoint together whose checksum is right, whatever is in it."""
    checksum = hashlib.sha256(body).hexdigest()
    return f"gluon_dynbatch checkpoint {version} {checksum}\n".encode() + body


def places(value, path=()):
    """Find all places of a tree, but that where anything may stand."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        if (*path, key) != ("trainer", "schedule"):
            yield value, key
            if isinstance(item, (dict, list)):
                yield from places(item, (*path, key))


def crafted(content, rng):
    """Leave out or replace something, with a right checksum."""
    header, arrays = taken_apart(content)
    if rng.random() < 0.3:
        name = rng.choice(list(arrays))
        kept = {key: array for key, array in arrays.items() if key != name}
        odd = [arrays[name].astype("float16"), arrays[name][:-1], np.array(["odd"])]
        replaced = rng.choice([kept, *({**kept, name: array} for array in odd)])
        return sealed(packed(header, replaced))
    top = rng.choice(list(header))
    inside = list(places(header[top], (top,)))
    where, key = rng.choice([(header, top), *inside, *inside])
    odd = rng.choice([None, {"odd": [1]}, [["odd"]], float("nan"), [[]] * 3])
    if odd is None:
        del where[key]
    else:
        where[key] = odd
    return sealed(packed(header, arrays))


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


def rewritten(content, name, member):
    """Put other bytes into the archive of a checkpoint."""
    body = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content.split(b"\n", 1)[1])) as old, zipfile.ZipFile(
        body, "w"
    ) as new:
        for each in old.namelist():
            new.writestr(each, member if each == name else old.read(each))
    return sealed(body.getvalue())


def declared(path, content):
    """A size of which no machine has as much memory."""
    member = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**9)}
    np.lib.format.write_array_header_1_0(member, header)
    name = next(name for name in taken_apart(content)[1] if name.startswith("parameter"))
    path.write_bytes(rewritten(content, f"{name}.npy", member.getvalue()))


def greater(path, content):
    """Settings of a model that would not fit into memory."""
    header, arrays = taken_apart(content)
    header["state"]["settings"]["hidden"] = 10**9
    path.write_bytes(sealed(packed(header, arrays)))


def deep(path, content):
    _, arrays = taken_apart(content)
    member = io.BytesIO()
    np.save(member, np.frombuffer(b"[" * 200_000, np.uint8))
    path.write_bytes(rewritten(content, "header.npy", member.getvalue()))


def pickled(path, content):
    """An array of objects, with a pickle that makes a folder when it is read."""
    member = io.BytesIO()
    np.save(member, np.array([Runs()], object), allow_pickle=True)
    name = next(iter(taken_apart(content)[1]))
    path.write_bytes(rewritten(content, f"{name}.npy", member.getvalue()))


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
        (declared, "not a whole checkpoint"),
        (deep, "not a whole checkpoint"),
        (pickled, "not a whole checkpoint"),
        (older, "written by an older version, whose checkpoints could run code"),
        (lambda path, content: path.write_bytes(sealed(b"", 3)),
         "written in format 3; this version reads format 4"),
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
