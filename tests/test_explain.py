"""``python -m gluon_dynbatch explain`` says which calls merge, which do not, and why."""

import linecache
import random
import re
import sys
import textwrap
import time

import mxnet as mx
import pytest

import gluon_dynbatch as gdb
from gluon_dynbatch import __main__
from gluon_dynbatch.explain import observe, pages
from gluon_dynbatch.report import advice
from gluon_dynbatch.scope import RUNTIME
from tests.common import ROOT, semantics
from tests.forks import run_command

MODEL = """
import sys
import mxnet as mx
import gluon_dynbatch as gdb
from mxnet.gluon import nn

cell = gdb.convert(nn.Dense(4, in_units=4, flatten=False))
cell.initialize()
cell.hybridize()
F = mx.np if mx.util.is_np_array() else mx.nd
xs = [F.ones((1, 4)) * i for i in range(8)]

def apply(x, steps):
    for _ in range(steps):
        x = cell(x)  # step
    return x
"""


@pytest.fixture
def explained(tmp_path, monkeypatch, capsys):
    """Return a function that explains a program: it returns exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def run(program, *arguments, lines=pages.MOST_LINES):
        script = tmp_path / "script.py"
        script.write_text(MODEL + textwrap.dedent(program))
        linecache.clearcache()  # all scripts have one name
        code = None
        try:
            pages.run_script("script.py", [*arguments], lines)
        except SystemExit as end:
            code = end.code
        assert RUNTIME.observer is None
        out, err = capsys.readouterr()
        for page in out.split("=== ")[1:]:
            assert len(page.splitlines()) < 40, "a page fits a screen"
            assert max(map(len, page.splitlines())) <= 120
        return code, out, err

    return run


def table(page):
    """Return the calls and launches of each line of a program, by its text."""
    return {text: row[:2] for text, row in figures(page).items() if not text.startswith("all ")}


def figures(page):
    """Return the rows of a table: calls, launches, and milliseconds of recording and running."""
    row = r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)  (?:\S+ in \S+: )?(.*)$"
    return {text: tuple(map(float, row)) for *row, text in re.findall(row, page, re.MULTILINE)}


SHARING = """
for _ in range(3):
    with gdb.batching(granularity="block", policy="depth"):
        for n, x in enumerate(xs):
            if n % 3:
                y = cell(x)
            else:
                y = cell(x * 2)
            y = y * y
            y = mx.nd.relu(y)
            y = mx.nd.tanh(y)
"""


@pytest.mark.parametrize("lines", [1, 2, 8, None])
def test_columns_add_up_to_the_totals_of_the_page(explained, lines):
    """Two lines share the launch of `cell`."""
    _, out, _ = explained(SHARING, lines=lines)
    *rows, (text, total) = figures(out).items()
    assert text == "all lines; launches of several are divided by their calls"
    others = [text for text, _ in rows if re.search("other lines?: explain --lines all", text)]
    assert len(rows) - len(others) == min(lines or 8, 5) and len(others) == (lines in (1, 2))
    for place, column in enumerate(zip(*(row for _, row in rows))):
        assert sum(column) == pytest.approx(total[place], abs=0.05 * len(rows))
    calls, launches, recording, running = total
    assert f"calls       {calls:.0f} in {launches:.0f} launches" in out
    times = dict(re.findall(r"(recording|running)[a-z' ]* ([\d.]+) ms", out))
    assert float(times["recording"]) == pytest.approx(recording, abs=0.06)
    assert float(times["running"]) == pytest.approx(running, abs=0.06)
    if not others:
        shared = [row[1] for text, row in rows if "cell(" in text]
        assert sum(shared) == pytest.approx(2, abs=0.11), "one for each scope"


def test_an_operator_that_does_not_merge(explained):
    code, out, err = explained("""
        for _ in range(3):
            with gdb.batching(granularity="block", policy="depth"):
                ys = [mx.nd.SoftmaxOutput(apply(x, 3), mx.nd.zeros(1)) for x in xs]
    """)
    assert code is None and not err
    # The first scope is left out, because it compiles.
    assert "scopes      3 (the first is not counted)\n" in out
    assert "calls       64 in 22 launches; 2.9 calls a launch on average, 8 at most\n" in out
    assert "flushes     2\n" in out
    (step, steps), (_, softmax) = sorted(table(out).items(), key=lambda item: -item[1][0])
    assert step.startswith("x = cell(x)") and steps == (48, 6) and softmax == (16, 16)
    assert "ran alone   16 x SoftmaxOutput at script.py:" in out and "kinds" not in out
    assert "its gradient ignores the head gradient" in out
    assert "-> make one such call after the scope" in out


def test_values_that_are_read(explained, front):
    """Reads in `map` give no advice, as the samples share flushes."""
    read = "item" if front == "np" else "asscalar"
    reading = f"lambda x: apply(x, 1).sum().{read}()"
    for call, launches in ((f"list(map({reading}, xs))", 16), (f"batch.map({reading}, xs)", 2)):
        _, out, _ = explained(f"""
            with gdb.batching(granularity="block", policy="depth") as batch:
                {call}
        """)
        assert f"calls       16 in {launches} launches" in out
        told = re.search(rf"value read  8 x {read}\(\) at script.py:\d+ in", out)
        assert bool(told) == (launches == 16)


MADE = {
    "array": "[[k] * 4]",
    "zeros": "(1, 4)",
    "ones": "(1, 4)",
    "full": "(1, 4), k",
    "arange": "4).reshape((1, 4)",
    "eye": "4, 4",
    "linspace": "0, k, 4).reshape((1, 4)",
}


def test_arrays_that_are_created_in_scopes(explained, monkeypatch, front):
    """A call counts that takes long, not one that finds what an equal call made; here, all do."""
    monkeypatch.setattr(observe, "SLOW_ARRAY_MS", 0)
    monkeypatch.setattr(advice, "MOST", len(MADE))
    module = getattr(mx, front)
    originals = [getattr(module, name) for name in MADE]
    calls = (f"apply(F.{name}({args}), 1)" for name, args in MADE.items())
    made = "\n".join(f"                    {call}" for call in calls)
    _, out, _ = explained(f"""
        F.array([1])
        for _ in range(2):
            with gdb.batching(granularity="block", policy="depth"):
                for k in range(10):
{made}
    """)
    found = re.findall(r"^arrays +(\d+) x (\S+) at script.py:(\d+) in ", out, re.MULTILINE)
    assert {name for _, name, _ in found} == {f"mx.{front}.{name}" for name in MADE}
    assert {calls for calls, *_ in found} == {"10"}
    assert len({line for *_, line in found}) == len(MADE)
    assert "making arrays takes" in out and "more: see" not in out
    assert [getattr(module, name) for name in MADE] == originals


ADVICE = [
    ("mx.nd.sort(apply(mx.nd.ones((70, 1500)), 0) * 2) for _ in range(20)",
     r"by MXNet 20 x sort at script.py:\d+ in <listcomp>.* sort has no native steps.* -> native"),
    ("mx.nd.LeakyReLU(mx.nd.ones((1, 3)), slope=n) for n in range(1, 10)",
     r"kinds 9 calls at .*script.py:\d+ in .* are of 9 kinds"),
    ("mx.nd.concat(*map(cell, xs[:n]), dim=1) for n in range(1, 8)",
     r"7 x Concat at script.py:\d+ in <listcomp> the number of arrays.* merges along axis 0"),
]  # fmt: skip


#: The same of `mx.np`.
NUMPY_ADVICE = [
    ("mx.np.sort(apply(mx.np.ones((70, 1500)), 0) * 2) for _ in range(20)",
     r"by MXNet 20 x sort at script.py:\d+ in <listcomp>.* sort has no native steps"),
    ("mx.np.concatenate(list(map(cell, xs[:n])), axis=1) for n in range(1, 8)",
     r"7 x np.concatenate at script.py:\d+ in <listcomp> the number of arrays"),
]  # fmt: skip


@pytest.mark.parametrize("calls, text", NUMPY_ADVICE)
def test_advice_for_mx_np(explained, calls, text):
    with semantics("np"):
        test_advice(explained, calls, text)


@pytest.mark.parametrize("calls, text", ADVICE)
def test_advice(explained, calls, text):
    _, out, _ = explained(f"""
        for _ in range(2):
            with gdb.batching(granularity="block", policy="depth"):
                ys = [{calls}]
    """)
    assert re.search(text, " ".join(out.split()))


def test_operators_of_several_lines_belong_in_a_cell(explained):
    """No line has many of the calls, but together they do; what recording costs is one row."""
    _, out, _ = explained("""
        for _ in range(2):
            with gdb.batching():
                for x in xs[:7]:
                    y = apply(x, 1)
                    y = mx.nd.tanh(y)
                    y = mx.nd.square(y)
                    y = mx.nd.relu(y)  # as often as the other lines
    """)
    assert re.search(
        r"recording 7 x \w+ at script.py:\d+ in <module> to record 28 calls costs more than 4 "
        r"launches; 21 of these calls are operators outside of cells -> put operators that always "
        r"run together, or after a cell, into one HybridBlock: its call is one; and if samples",
        flat(out),
    )  # fmt: skip
    assert out.count("\nrecording  ") == 1


COUNTED = {
    "recording": "y = [mx.nd.tanh(apply(x, 1 + n % 3)) for n, x in enumerate(xs * 5)]",
    "arrays": "y = [cell(mx.nd.full((1, 4), k)) for k in range(20)]",
    "by MXNet": "y = [mx.nd.sort(mx.nd.ones((70, 1500)) * 2) for _ in range(20)]",
    "analysis": "y = [cell(x) for x in xs[: 2 + next(lengths)]]",
    "at once": "y = [cell(x) for x in xs[:2]]",
}


@pytest.mark.parametrize("kind", COUNTED)
def test_advice_does_not_depend_on_the_clock(explained, monkeypatch, kind):
    """Another program may take the processor at any moment."""
    options = 'granularity="block", policy="search"' if kind == "analysis" else ""
    program = f"""
        lengths = iter(range(9))
        for _ in range(3):
            with gdb.batching({options}):
                {COUNTED[kind]}
    """
    advice, real, lost = set(), time.perf_counter, [0.0]
    monkeypatch.setattr(observe, "MOST_PROBES", 3)
    for seed in (None, 0, 1, 2):
        luck = random.Random(seed)

        def busy(luck=luck):
            lost[0] += luck.random() if luck.random() < 0.2 else 0
            return real() + lost[0]

        with monkeypatch.context() as patch:
            if seed is not None:
                patch.setattr(time, "perf_counter", busy)
            _, out, _ = explained(program)
        _, _, changes = out.partition("to change\n")
        advice.add(re.sub(r"[\d.]+ ms", "ms", flat(changes)))
    assert len(advice) == 1, advice
    assert f"\n{kind}  " in f"\n{changes}"


def test_tracebacks_of_the_script_have_only_its_own_frames(explained):
    code, out, err = explained("""
        with gdb.batching(granularity="block", policy="depth"):
            ys = [apply(x, 2) for x in xs]
        ys[0].no_such_method()
    """)
    assert code == 1 and "calls       16 in 2 launches" in out
    first, *_, last = [line for line in err.splitlines() if not set(line) <= {" ", "^", "~"}]
    assert first == "Traceback (most recent call last):" and last.startswith("AttributeError: ")
    files = re.findall(r'File "(.*?)"', err)
    assert files[0].endswith("script.py") and not any("runpy" in name for name in files)


def test_a_scope_in_which_every_flush_fails(explained):
    code, out, err = explained("""
        with gdb.batching():  # -1 has no Cholesky factor
            ys = [mx.nd.linalg.potrf(apply(x, 2).reshape((1, 2, 2)) * 0 - 1) for x in xs]
    """)
    assert "LaunchError" in err and code == 1
    assert "no flush succeeded" in out and "launches" not in out


@pytest.mark.parametrize("argument, wanted", [("", None), ("None", None), ("3", 3), ("'no'", "no")])
def test_scripts_that_exit(explained, argument, wanted):
    code, out, err = explained(f"print(sys.argv[1:])\nsys.exit({argument})", "--a", "b")
    assert code == wanted and not err
    assert out.startswith("['--a', 'b']\n") and "no scope was opened" in out


def test_the_command_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])")
    assert run_command("explain", script, "-x").startswith(f"__main__ ['-x'] {tmp_path}\n")
    assert run_command("--version") == f"gluon_dynbatch {gdb.__version__}\n"


WRONG = {
    "": "required: command",
    "explain": "required: script",
    "explian x.py": "invalid choice: 'explian'",
    "--verbose": "required: command",
    "explain --lines 0 x.py": "'0' is neither 'all' nor a whole number",
    "explain --lines many x.py": "'many' is neither 'all' nor a whole number",
    "explain --lines -1 x.py": "--lines",
    "explain --lines": "--lines: expected one argument",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_command_is_one_line(arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gluon-dynbatch", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and not out and len(err.splitlines()) == 1
    assert err.startswith("gluon-dynbatch") and WRONG[arguments] in err


NOT_PROGRAMS = {
    "no.py": (None, "there is no file 'no.py'"),
    "folder": (None, "'folder' is a folder, not a program"),
    "half.py": (b"x = 1\nx = (\n", "half.py:2: SyntaxError: "),
    "bytes.py": (b"x = 1\0", ""),
    "latin.py": ("print('\u00e9')".encode("latin1"), "latin.py:1: SyntaxError: "),
    "tabs.py": (b"if 1:\n\tx = 1\n        y = 2\n", "tabs.py:3: TabError: "),
}


@pytest.mark.parametrize("name", NOT_PROGRAMS)
def test_what_is_not_a_program_is_one_line(name, tmp_path, monkeypatch, capsys):
    content, problem = NOT_PROGRAMS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["gluon_dynbatch", "explain", name])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and not out and len(err.splitlines()) == 1
    assert f"error: {problem}" in err


def test_work_from_before_is_not_charged_to_the_first_launch(explained):
    """The argument of the first call needs some time from when the flush waits for it."""
    _, out, _ = explained("""
        import threading
        import time
        import traceback

        main = threading.get_ident()

        def is_awaited():
            stack = traceback.extract_stack(sys._current_frames()[main])
            return "settle" in [frame.name for frame in stack]

        class Slow(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                end = time.monotonic() + 60
                while not is_awaited() and time.monotonic() < end:
                    time.sleep(0.005)
                for _ in range(10):
                    time.sleep(0.005)
                self.assign(out_data[0], req[0], in_data[0])

        @mx.operator.register("slow_in_test_explain")
        class SlowProp(mx.operator.CustomOpProp):
            def create_operator(self, *args):
                return Slow()

        xs[0] = mx.nd.Custom(xs[0], op_type="slow_in_test_explain")
        with gdb.batching(granularity="block", policy="depth") as batch:
            ys = [apply(x, 2) for x in xs]
            batch.flush()
            ys = [apply(x, 1) for x in xs]
    """)
    (before,) = re.findall(r"work from before (\d+\.\d) ms$", out, re.MULTILINE)
    assert float(before) > 1 and "calls       24 in 3 launches" in out


def test_errors_of_other_work_are_left_to_the_script(explained):
    code, out, err = explained("""
        failing = mx.nd.linalg.potrf(-mx.nd.ones((2, 2)))
        with gdb.batching(granularity="block", policy="depth"):
            ys = [apply(x, 2) for x in xs]
        try:
            failing.asnumpy()
        except mx.MXNetError:
            print("caught")
    """)
    assert code is None and out.startswith("caught\n") and "16 in 2 launches" in out


def test_a_first_scope_that_alone_was_recorded_is_shown(explained):
    _, out, _ = explained("""
        for _ in range(3):
            with gdb.batching():
                ys = [apply(x, 1).asnumpy() for x in xs]
    """)
    assert "scopes      3 (what follows is from the first, the only one that recorded)" in out
    assert re.search(r"at once 16 calls at script.py:\d+ in <module> these calls", flat(out))
    assert "8 in 8 launches" in out
    assert re.search(r"8 x asnumpy\(\) at script.py:\d+ in .*-> read values after", flat(out))


def test_reasons_of_the_first_scope_are_not_lost(explained):
    """Only the first scope reads a value."""
    _, out, _ = explained("""
        for number in range(3):
            with gdb.batching(granularity="block", policy="depth"):
                ys = [apply(x, 2) for x in xs]
                if number == 0:
                    print(ys[0])
    """)
    assert "calls       32 in 4 launches" in out
    assert re.search(r"value read 1 x print\(\) at script.py:\d+ in", flat(out))


def test_a_fact_is_said_once(explained):
    """The reason why sizes need launches of their own is also why MXNet runs them."""
    _, out, _ = explained("""
        for _ in range(2):
            with gdb.batching(granularity="block", policy="depth"):
                ys = [mx.nd.sort(mx.nd.ones((35 * n, 1500)) * 2) for n in range(1, 5)]
    """)
    assert flat(out).count("sort has no native steps") == 1


def test_rows_name_sections_that_are_there(explained):
    """By title and file, as long as the site has no address; HTML links to the section."""
    _, out, _ = explained("""
        with gdb.batching(granularity="block", policy="depth") as batch:
            ys = [mx.nd.SoftmaxOutput(cell(x), mx.nd.zeros(1)) for x in xs]
    """)
    (title, file), *others = re.findall(r"the page '(.*?)' \((docs/.*?)\) explains each row", out)
    assert not others and (ROOT / file).read_text("utf-8").startswith(f"# {title}\n")
    for kind in advice.KINDS.values():
        page, _, section = kind.section.partition("#")
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
        assert section in slugs, kind


def test_each_batcher_of_a_block_has_a_page_of_its_own(explained):
    """Its scopes are opened by a thread in which there is no line of the script."""
    program = """
    import numpy as np

    batchers = []
    batchers.append(gdb.RequestBatcher(cell))
    batchers.append(gdb.RequestBatcher(cell))
    for batcher in batchers:
        with batcher:
            batcher.submit(np.ones((1, 4), "float32")).result()
    """
    _, out, _ = explained(program)
    lines = (MODEL + textwrap.dedent(program)).splitlines()
    made = [i for i, line in enumerate(lines, 1) if "RequestBatcher" in line]
    assert re.findall(r"=== scope at (\S+)", out) == [f"script.py:{line}" for line in made]


def test_how_few_launches_are_possible(explained):
    """Of the three scopes, two are counted."""
    _, out, _ = explained("""
        other = gdb.convert(nn.Dense(4, in_units=4))
        other.initialize()
        other.hybridize()
        for _ in range(3):
            with gdb.batching(granularity="block", policy="depth"):
                ys = [other(cell(x)) if n % 2 else cell(other(x)) for n, x in enumerate(xs)]
    """)
    assert re.search("calls       32 in [68] launches;", out)
    assert re.search(r"at best +32 calls at script.py:\d+ in <module>\n", out)
    assert "no policy needs fewer than 4\n" in out


def flat(out):
    return " ".join(out.split())
