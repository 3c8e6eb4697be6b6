"""Wrong input of any program: one exact line, exit code 2, and nothing has run or is lost."""

import argparse
import importlib
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import arguments
import benchmark
import draw_measured
import launch
import serve_load
import tree_lstm_relatedness as training
from tests.common import ROOT
from tests.test_docs import load
from workloads.registry import WORKLOADS

#: Modules of examples, and a program that needs Ray.
OTHERS = ("arguments", "http_service", "numpy_training", "serve_ray", "service_processes")
PROGRAMS = {
    path.stem: load(path)
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.stem not in OTHERS
}
PROGRAMS.update(benchmark=benchmark, draw_measured=draw_measured, launch=launch)
PROGRAMS.update(serve_load=serve_load, training=training)
serve = PROGRAMS["serve"]


class CapturedError(Exception):
    pass


def parsers_of(program):
    """Return the parsers of a program, without running it."""
    with pytest.MonkeyPatch.context() as patch:

        def capture(parser, *args):
            raise CapturedError(parser)

        patch.setattr(argparse.ArgumentParser, "parse_args", capture)
        with pytest.raises(CapturedError) as caught:
            program.main(["train"])
    parser = caught.value.args[0]
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return list(nested[0].choices.values()) if nested else [parser]


OPTIONS = [
    (name, parser, action)
    for name, program in PROGRAMS.items()
    for parser in parsers_of(program)
    for action in parser._actions
    if action.option_strings and action.type is not None
]
NUMBERS = [
    pytest.param(
        name, parser, action, id=f"{name}-{parser.prog.split()[-1]}{action.option_strings[0]}"
    )
    for name, parser, action in OPTIONS
    if getattr(action.type, "__name__", "") in ("int", "float", "budget")
]
#: For these options, 0 is a value.
ZERO = {"--analysis-budget", "--batch-wait-timeout-s", "--dropout", "--kvstore-timeout", "--port",
        "--rude", "--seed", "--shutdown-timeout-s", "--stream-interval-s", "--timeout-s",
        "benchmark --seconds", "--weight-decay"}  # fmt: skip
#: These only take time, or are more than there is.
ENDLESS = {"--alone-minibatches", "--analysis-budget", "--batch-size", "--embedding-lr", "--lr",
           "--lr-decay", "--loop-samples", "--max-batch-size", "--max-bytes", "--max-queue",
           "--max-limit", "--max-words", "--minutes", "--pairs-seconds", "--warmup",
           "--weight-decay", "benchmark --rounds", "serve_load --rounds", "serve_load --seconds",
           "training --epochs", "training --limit", "training --pairs",
           "training --rounds"}  # fmt: skip


def refusal(capsys, run, *arguments):
    """Return the only line of a refusal."""
    capsys.readouterr()
    try:
        status = run(*arguments)
    except SystemExit as error:
        status = error.code
    printed, line = capsys.readouterr()
    assert status == 2 and printed == "", (status, printed, line)
    assert re.fullmatch(r"error: [^\n]+\n", line), line
    return line


@pytest.mark.parametrize("name, parser, action", NUMBERS)
def test_numbers_are_checked_before_anything_runs(name, parser, action, capsys):
    (option,) = action.option_strings
    accepted, names = set(), {option, f"{name} {option}"}
    if names & ZERO:
        accepted.add("0")
    if names & ENDLESS:
        accepted.add("9" * 12)
        # A number of 400 digits is no finite float; a budget may be infinite.
        if action.type.__name__ != "float":
            accepted.add("9" * 400)
    if option == "--analysis-budget":
        accepted.add("inf")
    wrong = ("-1", "nan", "-inf", "foo", "", " ", "1,2", "0x10")
    for text in (*wrong, "0", "inf", "9" * 12, "9" * 400):
        if text in accepted:
            action.type(text)
        else:
            assert option in refusal(capsys, parser.parse_args, [f"{option}={text}"])


def test_every_option_with_a_value_is_checked():
    """Others are names, checked by the functions themselves, and paths, checked below."""
    checked = {"budget", "comma-separated list", "context", "float", "int", "optimizer",
               "read_ways"}  # fmt: skip
    kinds = {action.type.__name__ for _, _, action in OPTIONS}
    assert kinds - checked == {"host", "Path"}


TINY = ["--limit", "4", "--embedding-size", "3", "--hidden", "2"]
SENTIMENT = ["--task", "sentiment"]
#: A program and its arguments, and what the line says.
REFUSED = [
    (training, "train --dropout 1.5", "argument --dropout: 1.5 is not less than 1"),
    (training, "train --dropout 1", "argument --dropout: 1 is not less than 1"),
    (training, "train --dropout 0.5", "--dropout is only for --task sentiment"),
    (training, "train --task sentiment --on-bad-sample skip", "--on-bad-sample is only for"),
    (training, "train --task sentiment --similarity-hidden 7", "--similarity-hidden is only for"),
    (training, "train --task sentiment --mode manual", "--mode manual is only for"),
    (training, "train --mode hybridized --policy depth", "--policy is only for --mode dynamic"),
    (training, "train --embedding x --embedding-size 5", "--embedding-size is not for --embedding"),
    (training, "train --freeze-embedding --no-freeze-embedding", "exclude each other"),
    (training, "train --optimizer foo", "argument --optimizer: 'foo' is none of adadelta, "),
    (training, "train --ctx cpu(99999)", "argument --ctx: 'cpu(99999)' is not a context"),
    (training, "train --granularity node", "argument --granularity: invalid choice: 'node'"),
    (training, "train --seed 4294967296", "argument --seed: 4294967296 is not at most 2147483647"),
    (training, "evaluate --hidden 7", "unrecognized arguments: --hidden 7"),
    (training, "predict --checkpoint x --lr 1", "unrecognized arguments: --lr 1"),
    (launch, "--hosts= -- train", "argument --hosts: '' has an empty part"),
    (launch, "--hosts a,,b -- train", "argument --hosts: 'a,,b' has an empty part"),
    (launch, "--hosts a;b -- train", "argument --hosts: 'a;b' is not the name of a host"),
    (launch, "-- train --lr -1", "argument --lr: -1 is not greater than 0"),
    (launch, "-- train --epochs foo", "argument --epochs: invalid int value: 'foo'"),
    (launch, "-- train --data /none", "/none: No such file or directory"),
    (launch, "-- train --embedding /none", "/none: no such file"),
    (launch, "-- evaluate", "the options after -- must begin with train"),
    (serve, "--port 99999", "argument --port: 99999 is not at most 65535"),
    (serve, "--host=", "argument --host: '' is no address"),
    (training, "train --output=", "argument --output: '' is not a path"),
    (training, "predict --checkpoint=", "argument --checkpoint: '' is not a path"),
    (training, "train --ctx gpu(0)", "argument --ctx: MXNet finds no gpu(0) here"),
    (training, "train --optimizer sgd,adam", "argument --optimizer: 'sgd,adam' is none of"),
    (training, "trian", "argument VERB: invalid choice: 'trian'"),
    (training, "train extra", " train --help)"),
    (training, "train --resume --output /none", "/none/last: No such file or directory"),
    (launch, "--", "the following arguments are required: -- OPTIONS"),
    (launch, "--workers auto2 -- train", "argument --workers: "),
    (benchmark, "--busy", "--busy is only for --threads"),
    (benchmark, "--kinds foo", "argument --kinds: 'foo' is none of inference, training"),
    (serve_load, "extra", "unrecognized arguments: extra"),
    (PROGRAMS["inspect_batching"], "extra", "unrecognized arguments: extra"),
    (PROGRAMS["tree_lstm"], "--epochs 1.5", "argument --epochs: invalid int value: '1.5'"),
    (training, "predict --workers 0", "argument --workers: 0 is not at least 1"),
    (training, "predict", "--checkpoint is required"),
    (training, "evaluate --split foo --checkpoint x", "argument --split: invalid choice: 'foo'"),
    (training, "train --limit 0", "argument --limit: 0 is not at least 1"),
    (training, "train --task foo", "argument --task: invalid choice: 'foo'"),
    (benchmark, "--threads 0", "argument --threads: 0 is not at least 1"),
    (benchmark, "--threads 1,x", "argument --threads: invalid comma-separated list value: '1,x'"),
    (benchmark, "--ways gdb:foo:depth", "argument --ways: 'gdb:foo:depth' is none of"),
    (benchmark, "--ways gdb:operator:depth:x", "'gdb:operator:depth:x' is none of"),
    (serve_load, "--rates 0", "argument --rates: 0 is not greater than 0"),
    (PROGRAMS["serve_decoder"], "--max-length x", "unrecognized arguments: --max-length x"),
    (launch, "--servers x -- train", "argument --servers: invalid int value: 'x'"),
    (serve, "--max-batch-size 0", "argument --max-batch-size: 0 is not at least 1"),
    (serve, "--max-bytes -1", "argument --max-bytes: -1 is not at least 1"),
    (serve, "--host no-such-host.invalid", "cannot listen at --host no-such-host.invalid --port"),
    (benchmark, "--workloads sick,", "argument --workloads: 'sick,' has an empty part"),
    (benchmark, "--ways foo", "argument --ways: 'foo' is none of"),
    (benchmark, "--batch-sizes 99999999 --workloads sick --limit 4", "is too large"),
    (PROGRAMS["tree_lstm"], "--analysis-budget foo",
     "argument --analysis-budget: 'foo' is not milliseconds, \"none\" or \"auto\""),
]  # fmt: skip


@pytest.mark.parametrize("program, arguments, text", REFUSED, ids=[case[1] for case in REFUSED])
def test_wrong_input_is_one_line(program, arguments, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(serve, "trained", None)
    assert text in refusal(capsys, program.main, arguments.split())
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("program, arguments", [
    (training, "train"), (launch, "-- train"), (PROGRAMS["ragged_lstm"], ""), (serve, ""),
], ids=["training", "launch", "ragged_lstm", "serve"])  # fmt: skip
def test_a_variable_with_a_wrong_budget_is_one_line(program, arguments, capsys, monkeypatch):
    monkeypatch.setenv("GLUON_DYNBATCH_ANALYSIS_BUDGET", "foo")
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(serve, "trained", None)
    line = refusal(capsys, program.main, arguments.split())
    assert "environment variable GLUON_DYNBATCH_ANALYSIS_BUDGET: 'foo' is not a valid" in line


@pytest.mark.parametrize("module, arguments, text", [
    ("fuzz", "--minutes nan", "argument --minutes: nan is not a finite number"),
    ("fuzz", "--minutes -1", "argument --minutes: -1 is not greater than 0"),
    ("fuzz", "--seed x", "argument --seed: invalid int value: 'x'"),
    ("fuzz", f"--folder {__file__}", f"{__file__}: not a folder"),
    ("mxnet_suite", "/none", "/none: no source of MXNet"),
    ("mxnet_suite", ". --ways foo", "argument --ways: 'foo' is none of scope, debug"),
    ("mxnet_suite", ". --tests (", "argument --tests: '(' is no pattern: missing )"),
    ("mxnet_suite", ". --processes 0", "argument --processes: 0 is not at least 1"),
    ("mxnet_suite", ". --seconds nan", "argument --seconds: nan is not a finite number"),
])  # fmt: skip
def test_tools_refuse_wrong_input_too(module, arguments, text, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", *arguments.split()])
    assert text in refusal(capsys, importlib.import_module(f"tests.{module}.__main__").main)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Make a missing path, a folder, and a file of no known kind."""
    folder = tmp_path_factory.mktemp("paths")
    (folder / "folder").mkdir()
    (folder / "file").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    return [folder / "none", folder / "folder", folder / "file"]


READING = [
    (training, ["train", *TINY, "--data"]),
    (training, ["train", *SENTIMENT, *TINY, "--data"]),
    (training, ["train", "--limit", "4", "--embedding"]),
    (training, ["evaluate", "--checkpoint"]),
    (training, ["predict", "--checkpoint"]),
    (launch, ["--", "train", "--data"]),
    (serve, ["--port", "0", "--checkpoint"]),
    (PROGRAMS["serve_decoder"], ["--port", "0", "--checkpoint"]),
    *((benchmark, [*TINY, "--workloads", name, "--batch-sizes", "1", f"--{option}"])
      for name, option in (("sick", "data"), ("tagger", "wikiner"), ("sst", "sst"),
                           ("modules", "clevr"), ("parser", "data"), ("seq2seq", "data"))),
    (benchmark, ["--read", "--output"]),
    (draw_measured, ["--figures"]),
]  # fmt: skip


@pytest.mark.parametrize("program, arguments", READING, ids=[" ".join(a) for _, a in READING])
def test_paths_that_do_not_fit_are_named(program, arguments, paths, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in paths:
        assert str(path) in refusal(capsys, program.main, [*arguments, str(path)])


@pytest.mark.parametrize("program, arguments", [
    (training, ["train", *TINY]),
    (training, ["train", *TINY, *SENTIMENT]),
    (benchmark, [*TINY, "--workloads", "reads", "--batch-sizes", "1"]),
    (launch, ["--", "train", *TINY]),
], ids=lambda value: value if isinstance(value, str) else None)  # fmt: skip
def test_a_file_is_not_a_folder_for_output(program, arguments, paths, capsys):
    file = paths[2]
    for output in (file, file / "below"):
        assert str(file) in refusal(capsys, program.main, [*arguments, "--output", str(output)])
    assert file.read_bytes().startswith(b"\x89PNG")


def test_checkpoints_of_other_models_and_folders_above_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training.Training, "run", lambda *arguments: None)
    output = ["--output", str(tmp_path / "run")]
    assert training.main(["train", *SENTIMENT, *TINY, *output]) == 0
    checkpoint = str(tmp_path / "run" / "last")
    line = refusal(capsys, serve.main, ["--port", "0", "--checkpoint", checkpoint])
    reason = "a model of sentiment, and this service is for relatedness"
    assert line == f"error: {checkpoint}: {reason}\n"
    line = refusal(capsys, training.main, ["evaluate", "--checkpoint", str(tmp_path / "run")])
    assert line == (
        f"error: {tmp_path / 'run'}: a folder; name a file in it, such as {tmp_path / 'run'}/best\n"
    )
    command = ["evaluate", "--checkpoint", checkpoint, "--on-bad-sample", "skip"]
    assert "--on-bad-sample is only for" in refusal(capsys, training.main, command)


def test_a_service_that_cannot_save_says_so_before_it_trains(tmp_path, capsys, monkeypatch):
    decoder = PROGRAMS["serve_decoder"]
    monkeypatch.setattr(decoder, "trained", None)
    line = refusal(capsys, decoder.main, ["--port", "0", "--save", str(tmp_path)])
    assert line == f"error: {tmp_path}: a folder, not a file to write\n"


def test_a_service_whose_port_is_taken_says_so_before_it_trains(capsys, monkeypatch):
    monkeypatch.setattr(serve, "trained", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(capsys, serve.main, ["--port", str(port)])
    expected = f"cannot listen at --host 127.0.0.1 --port {port}: Address already in use"
    assert line == f"error: {expected}\n"


def test_no_workload_claims_what_was_not_measured():
    for name, entry in WORKLOADS.items():
        claims = re.search(r"[0-9]|holds|faster|as fast|twice|half", entry.reading)
        assert claims is None, (name, claims)


def test_arguments_of_examples_are_read_with_their_defaults():
    args = arguments.read("What it does.\nMore.", ["--epochs", "3"], epochs=16, words=2)
    assert vars(args) == {"analysis_budget": "auto", "epochs": 3, "words": 2}


def commands():
    """Yield the commands of the pages that run a program here: its path, and its arguments."""
    folders = ROOT, ROOT / "docs", ROOT / "docs" / "guides", ROOT / "docs" / "recipes"
    pages = [*(page for folder in folders for page in sorted(folder.glob("*.md")))]
    for page in [*pages, ROOT / "experiments" / "README.md"]:
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                programs = [k for k, word in enumerate(words) if re.search(r"^\w+/.*\.py$", word)]
                if words[:1] == ["$"] and programs:
                    yield words[programs[0]], tuple(words[programs[0] + 1 :])


def test_commands_of_the_pages_are_accepted(monkeypatch):
    """Each option exists, and takes the value; nothing runs."""
    accept = argparse.ArgumentParser.parse_args

    def parse(parser, args=None, namespace=None):
        raise CapturedError(accept(parser, args, namespace))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    found = set(commands())
    for path, options in sorted(found):
        program = PROGRAMS.get("training" if "relatedness" in path else (ROOT / path).stem)
        assert (ROOT / path).is_file()
        if program is not None:  # serve_ray needs Ray
            with pytest.raises(CapturedError):
                program.main([*options])
    assert len(found) > 20


WRITERS = ("draw_serving", "draw_speed", "draw_tree_batching", "list_operators", "notebooks",
           "snippets")  # fmt: skip
#: A program that writes pages and its arguments, and what the line says of files in a folder.
NOT_FIGURES = {
    "draw_serving --figures none": "none: No such file or directory",
    "draw_serving --figures folder": "folder: Is a directory",
    "draw_serving --figures bytes": "bytes: not a file of JSON",
    "draw_serving --figures list": "list: not written by a load test of the decoder",
    "draw_serving --figures empty": "empty: not written by a load test of the decoder",
    "draw_speed --threads none": "none/threads.json: No such file or directory",
    "draw_speed --threads list": "list/threads.json: Not a directory",
    "draw_speed --threads folder": "folder: has no measurement of sick over threads",
    "snippets none.md": "none.md: not a page with Python code",
    **{f"{name} --foo": "unrecognized arguments: --foo" for name in WRITERS},
}


@pytest.mark.parametrize("command", NOT_FIGURES)
def test_programs_that_write_pages_do_nothing_if_their_arguments_are_wrong(
    command, tmp_path, capsys, monkeypatch
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\x89PNG\xff")
    for name, text in (("list", "[1]"), ("empty", '{"continuous": [{}]}')):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder" / "threads.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_text", None)
    name, *arguments = command.split()
    program = load(ROOT / "docs" / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    figures = [*(ROOT / "docs").glob("*.csv")]
    before = [path.read_bytes() for path in figures]
    assert NOT_FIGURES[command] in refusal(capsys, program.main)
    assert [path.read_bytes() for path in figures] == before


@pytest.mark.parametrize("name", ["installs", "wheels"])
def test_tools_do_nothing_if_their_arguments_are_wrong(name):
    command = [sys.executable, str(ROOT / "tools" / f"{name}.py"), "--foo"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    *_, line = run.stderr.splitlines()
    assert run.returncode == 2 and "error: " in line and "--foo" in line
