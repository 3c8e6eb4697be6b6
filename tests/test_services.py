"""The services of the examples: answers, streams, errors, health, figures, their end."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

import gluon_dynbatch as gdb
import http_service
import serve
import serve_decoder
import service_processes
from serving import contest, decoder, model, pairs
from serving.client import EXAMPLES, events_of, request_of, send, service, started
from tests.common import PATIENCE, ROOT
from tests.continuous.walking import settled
from tests.experiments.test_processes import alive
from tests.forks import run_script

SIZES = {"embedding_size": 12, "hidden_size": 16}


async def asked(app, path, content=None, method="POST", leaves=None):
    """Ask an application; return status, headers, and the parts of the body.

    The client leaves when the event `leaves` is set.
    """
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    messages, sent = [{"type": "http.request", "body": body}], []

    async def receive():
        if messages:
            return messages.pop()
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        await asyncio.sleep(0)

    await app({"type": "http", "path": path, "method": method}, receive, send)
    for _ in range(3):  # what waits for the client to leave is cancelled
        await asyncio.sleep(0)
    start, *parts = sent or [{"status": None, "headers": ()}]
    return start["status"], dict(start["headers"]), [part["body"].decode() for part in parts]


def answer(*arguments, **options):
    """Ask an application; return the status and the JSON of the answer."""
    status, headers, parts = asyncio.run(asked(*arguments, **options))
    assert headers[b"content-type"] == b"application/json"
    assert int(headers[b"content-length"]) == len("".join(parts).encode())
    return status, json.loads("".join(parts))


def events(parts):
    """Return the events of the parts of a body, as chunks of HTTP would have them."""
    chunks = [f"{len(part):x}\r\n{part}\r\n".encode() for part in parts]
    return events_of(b"".join([*(chunk for chunk in chunks if chunk[0] != b"0"), b"0\r\n\r\n"]))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Write a checkpoint of a small model; return it and its sentences with their answers."""
    path = tmp_path_factory.mktemp("decoder") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "SENTENCES", 4)
        patch.setattr(decoder, "KNOWN", 60)
        return path, decoder.prepare(path, **SIZES)


def arguments(path, *options):
    argv = ["--checkpoint", str(path), *options]
    return service_processes.parse(serve_decoder.DecoderService, argv)


@pytest.fixture
def app(checkpoint):
    args = arguments(checkpoint[0], "--max-words", "30", "--max-limit", "50")
    app = serve_decoder.DecoderService(args, serve_decoder.DecoderService.load(args))
    app.real = app.batcher  # a test may replace the other
    yield app
    app.real.close()


def test_concurrent_requests_get_the_words_of_the_loop(app, checkpoint):
    sentences = checkpoint[1]
    wanted = [(words, known[:limit]) for words, known in sentences for limit in (1, 7, 50)]

    async def all_at_once():
        bodies = [{"words": words, "limit": len(known)} for words, known in wanted]
        in_parts = [asked(app, "/generate", body) for body in bodies]
        whole = [asked(app, "/generate", {**body, "stream": False}) for body in bodies]
        return await asyncio.gather(*in_parts, *whole)

    answers = asyncio.run(all_at_once())
    for (_, words), (status, headers, parts) in zip(wanted, answers):
        assert status == 200 and headers[b"content-type"] == b"text/event-stream"
        *each, end = events(parts)
        assert each == [("message", {"word": word}) for word in words]
        assert end == ("end", {"count": len(words)})
    for (_, words), (status, _, parts) in zip(wanted, answers[len(wanted) :]):
        assert status == 200 and json.loads("".join(parts)) == {"words": words}
    assert app.batcher.stats().completed == 2 * len(wanted)


@pytest.mark.parametrize("count", [1, 15, 16, 17])
def test_memories_are_padded_with_rows_that_nobody_attends_to(count):
    memory = np.random.RandomState(count).uniform(-1, 1, (count, 3)).astype("float32")
    rows, padding = serve_decoder.padded(mx.nd.array(memory))
    assert rows.shape == (16 if count < 17 else 32, 3) and padding.shape == (1, rows.shape[0])
    weights = mx.nd.softmax(padding).asnumpy()[0]
    assert (weights > 0).tolist() == [True] * count + [False] * (rows.shape[0] - count)
    assert (rows.asnumpy()[:count] == memory).all()


#: Bodies that the decoder refuses, with the status and the error.
REFUSED = [
    (b"{", 400, "the body is not JSON"),
    (b"[" * 50_000, 400, "the body is not JSON"),
    (b" " * 100_000, 413, "the body has more than 65536 bytes"),
    ([], 422, 'the body needs "words", a string'),
    ({"words": 3}, 422, 'the body needs "words", a string'),
    ({"words": " "}, 422, "there are 0 words, not 1 to 30"),
    ({"words": "a " * 31}, 422, "there are 31 words, not 1 to 30"),
    *(({"words": "a", "limit": limit}, 422, '"limit" is a whole number from 1 to 50')
      for limit in (0, 51, -1, True, 1.5, "3", None)),
    ({"words": "a", "stream": 1}, 422, '"stream" is true or false'),
]  # fmt: skip


@pytest.mark.parametrize("content, status, text", REFUSED, ids=[str(c)[:20] for c, *_ in REFUSED])
def test_wrong_requests_get_an_error_in_json(app, content, status, text):
    assert answer(app, "/generate", content) == (status, {"error": text})
    assert app.batcher.stats().completed == 0


def test_addresses_have_one_method(app):
    assert answer(app, "/none") == (404, {"error": "no such address"})
    assert answer(app, "/health") == (405, {"error": "the method is GET"})
    _, headers, _ = asyncio.run(asked(app, "/generate", method="GET"))
    assert headers[b"allow"] == b"POST"


class Batcher:
    """Answers with words, and then with an error."""

    def __init__(self, error, words=(), hangs=False):
        self.error, self.words, self.hangs, self.ended = error, words, hangs, False

    async def __call__(self, sample, timeout_s=None):
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise self.error

    def stream(self, sample, timeout_s=None):
        return self

    async def __aiter__(self):
        for word in self.words:
            yield word
        await self("sample")

    def available(self):
        return []

    async def aclose(self):
        self.ended = True


#: Errors of a batcher, with the status and the text of the answer.
ERRORS = [
    (gdb.QueueFullError("no"), 503, "too many requests are waiting"),
    (gdb.ClosedError("no"), 503, "the service is shutting down"),
    (gdb.RequestTimeoutError("no"), 504, "the answer takes too long"),
    (ValueError("no"), 500, "the model failed"),
]
NAMED = [type(error).__name__ for error, *_ in ERRORS]


@pytest.mark.parametrize("error, status, text", ERRORS, ids=NAMED)
def test_errors_of_the_batcher(app, monkeypatch, error, status, text):
    """Before the first word, an error has a status; after it, it is an event."""
    monkeypatch.setattr(app, "batcher", Batcher(error))
    for in_parts in (True, False):
        body = {"words": "a", "stream": in_parts}
        assert answer(app, "/generate", body) == (status, {"error": text})
    if status != 504:  # its request has no limit
        assert answer(app, "/health", method="GET") == (503, {"error": text})
    batcher = Batcher(error, words=["b", "c"])
    monkeypatch.setattr(app, "batcher", batcher)
    sent, _, parts = asyncio.run(asked(app, "/generate", {"words": "a"}))
    assert (sent, batcher.ended) == (200, True)
    assert events(parts)[-2:] == [("message", {"word": "c"}), ("error", {"error": text})]


@pytest.mark.parametrize("words", [[], ["b", "c"]], ids=["at once", "during the answer"])
def test_a_client_that_leaves_ends_its_request(app, monkeypatch, words):
    batcher = Batcher(None, words, hangs=True)
    monkeypatch.setattr(app, "batcher", batcher)

    async def leave():
        leaves = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, leaves.set)
        return await asyncio.wait_for(
            asked(app, "/generate", {"words": "a"}, leaves=leaves), PATIENCE
        )

    asyncio.run(leave())
    assert batcher.ended and figures(app)['answers_total{status="499"}'] == 1


def figures(app):
    """Return the figures of an application by name."""
    text = app.figures.text(app.real.stats())
    lines = [line.split() for line in text.splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in lines}


def test_health_is_an_answer_of_the_model_in_time(app, monkeypatch):
    assert answer(app, "/health", method="GET") == (200, {"status": "ok"})
    assert app.batcher.stats().completed == 1
    monkeypatch.setattr(http_service, "HEALTHY_S", 0.01)
    monkeypatch.setattr(app, "batcher", Batcher(None, hangs=True))
    text = "the model has not answered in 0.01 seconds"
    assert answer(app, "/health", method="GET") == (503, {"error": text})


def test_health_of_a_closed_batcher(app):
    app.batcher.close()
    wanted = (503, {"error": "the service is shutting down"})
    assert answer(app, "/health", method="GET") == wanted


def test_figures_count_answers_and_minibatches(app):
    for body in ({"words": "a", "limit": 5}, {"words": "a", "limit": 3, "stream": False}, {}):
        asyncio.run(asked(app, "/generate", body))
    app.real.close()  # the worker has counted its last minibatch
    got = figures(app)
    assert got['answers_total{status="200"}'] == 2 and got['answers_total{status="422"}'] == 1
    assert got["request_seconds_count"] == 3
    assert got['requests_total{end="completed"}'] == 2 and got["requests_running"] == 0
    assert got["first_word_seconds_count"] == got["word_seconds_count"] == 1
    assert sum(value for name, value in got.items() if name.startswith("minibatches_total")) >= 2
    again = figures(app)
    assert again["minibatch_seconds_total"] == got["minibatch_seconds_total"] > 0


def test_checkpoints_of_other_services_are_refused(checkpoint, tmp_path, capsys):
    pairs.prepare(tmp_path / "pairs", SMALL)
    for program, path, other, own in (
        (serve_decoder, tmp_path / "pairs", "relatedness", "reversal"),
        (serve, checkpoint[0], "reversal", "relatedness"),
    ):
        assert program.main(["--port", "0", "--checkpoint", str(path)]) == 2
        wanted = f"error: {path}: a model of {other}, and this service is for {own}\n"
        assert capsys.readouterr().err == wanted


SMALL = ("--hidden", "20", "--embedding-size", "20", "--similarity-hidden", "10", "--limit", "60")


def test_a_service_under_load_answers_each_request_correctly(tmp_path):
    """The server and the clients are real; some clients disconnect or send garbage."""
    answers = pairs.prepare(tmp_path / "model", SMALL)
    with service("serve", tmp_path / "model") as port:
        counts = pairs.load(port, answers, 1, clients=16, rude=1)
        for size in (100_000, 10_000_000):  # answered, not reset, although it is sent first
            answer = asyncio.run(send(port, request_of("/score", b" " * size)))
            assert answer == (413, b'{"error":"the body has more than 65536 bytes"}')
    assert counts["answered"] >= 16 and counts["refused"] >= 6 and counts["vanished"] >= 5


def test_two_processes_share_a_port_and_answer_what_is_under_way_when_they_end(checkpoint):
    path, sentences = checkpoint
    words, known = sentences[0]
    body = json.dumps({"words": words, "limit": len(known)}).encode()
    with started("serve_decoder", path, "--workers", "2") as (process, port):
        got = decoder.ask_all(port, decoder.arrivals(40, 1, 1, (5, 60)), sentences)
        seen = pairs.read_metrics(port)
        assert seen["first_word_seconds_count"] == len(got)  # of both processes
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
            connection.sendall(request_of("/generate", body))
            received = connection.recv(4096)
            process.send_signal(signal.SIGTERM)
            while part := connection.recv(4096):
                received += part
        assert len(events_of(received.partition(b"\r\n\r\n")[2])) == len(known) + 1
        assert process.wait(PATIENCE) == 0


def test_a_service_whose_model_ends_ends(checkpoint):
    """The process of the model is its only child; SIGINT of a terminal reaches both."""
    path, sentences = checkpoint
    with started("serve_decoder", path) as (process, port):
        assert decoder.ask_all(port, decoder.arrivals(40, 0.5, 1, (5, 60)), sentences)
        (model,) = children(process.pid)
        os.kill(model, signal.SIGINT)
        assert decoder.ask_all(port, decoder.arrivals(40, 0.5, 2, (5, 60)), sentences)
        assert pairs.read_metrics(port)['requests_total{end="completed"}'] > 20
        os.kill(model, signal.SIGKILL)
        assert process.wait(PATIENCE) == 1


def children(process):
    """Return the processes that a process has started."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_with_its_model_when_all_is_answered(checkpoint, end):
    path, sentences = checkpoint
    words, known = sentences[0]
    body = json.dumps({"words": words, "limit": len(known)}).encode()
    with started("serve_decoder", path) as (process, port):
        (model,) = children(process.pid)
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
            connection.sendall(request_of("/generate", body))
            received = connection.recv(4096)
            process.send_signal(end)
            while part := connection.recv(4096):
                received += part
        assert len(events_of(received.partition(b"\r\n\r\n")[2])) == len(known) + 1
        assert process.wait(PATIENCE) == 0
    assert not alive(model)


@pytest.mark.parametrize("answers, replaced", [([False] * 30 + [True], False), ([False], True)])
def test_a_process_that_answers_late_is_not_replaced(monkeypatch, answers, replaced):
    class Process:
        left, ended = list(answers), []

        def is_alive(self, timeout):
            return self.left.pop(0) if len(self.left) > 1 else self.left[0]

        def kill(self):
            self.ended.append(self)

        join = start = lambda self: None

    hung, signals = Process(), []
    monkeypatch.setattr(service_processes.multiprocess, "Process", lambda *args: Process())
    processes = [hung]
    parts = {"processes": processes, "signal_queue": signals, "config": 0, "target": 0}
    supervisor = SimpleNamespace(**parts, sockets=[])
    service_processes.Supervisor.keep_subprocess_alive(supervisor)
    assert (processes[0] is not hung) == (hung in hung.ended) == replaced
    signals.append(signal.SIGTERM)
    service_processes.Supervisor.keep_subprocess_alive(supervisor)
    assert len(hung.ended) == replaced


STUB = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
server.RequestHandlerClass.do_GET = lambda self: (self.send_response(200), self.end_headers())
print(f"http://127.0.0.1:{server.server_port} ", flush=True, file=__import__("sys").stderr)
server.serve_forever()
"""
LOADING = """
import sys, time
from pathlib import Path
from serving import client
client.EXAMPLES = Path(sys.argv[1])
with client.started("stub", "none") as (_, port):
    print(port, flush=True)
    time.sleep(1000)
"""


def test_a_service_ends_with_the_program_that_puts_load_on_it(tmp_path):
    """Even if that is killed."""
    (tmp_path / "stub.py").write_text(STUB)
    command = [sys.executable, "-c", LOADING, str(tmp_path)]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "experiments")))
    settings = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONPATH": paths}}
    with subprocess.Popen(command, **settings) as process:
        address = "127.0.0.1", int(process.stdout.readline())
        socket.create_connection(address).close()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM

    def refuses():
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return True
        return False

    assert settled(refuses)


def test_a_service_without_its_checkpoint_says_so_in_one_line(tmp_path):
    missing = str(tmp_path / "none")
    ended = run_script(EXAMPLES / "serve.py", "--checkpoint", missing, "--port", "0")
    assert ended == (2, f"error: {missing}: No such file or directory\n")


def test_the_service_of_pairs_answers_as_its_page_shows():
    """The page has the request, too; the last digits depend on the order of sums."""
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    body, shown = re.search(r"/score -d '(.*)'\n(.*)\n", page).groups()
    app = serve.ScoreService(*loaded(serve.ScoreService))
    with app.batcher:
        status, got = answer(app, "/score", body.encode())
    assert status == 200 and got["score"] == pytest.approx(json.loads(shown)["score"], abs=1e-3)


def loaded(kind):
    args = service_processes.parse(kind, [])
    return args, kind.load(args)


def test_the_page_shows_the_events_of_a_decoder_that_has_learnt_its_task():
    """Training takes longer than a test may."""
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    body, shown = re.search(r"/generate -d '(.*)'\n((?:.|\n)*?)```", page).groups()
    words = json.loads(body)["words"].split()[::-1]
    events = [http_service.event({"word": word}) for word in words]
    assert shown == "".join([*events, http_service.event({"count": len(words)}, "end")])


# The load


def test_arrivals_are_a_poisson_process():
    requests = decoder.arrivals(50, 40, 1)
    gaps = np.diff([request.due for request in requests])
    assert len(requests) / 40 == pytest.approx(50, rel=0.1)
    assert gaps.mean() == pytest.approx(gaps.std(), rel=0.1)
    words = {request.words for request in requests}
    assert (min(words), max(words)) == decoder.LENGTHS
    assert requests == decoder.arrivals(50, 40, 1) != decoder.arrivals(50, 40, 2)


def test_wrong_and_missing_words_are_found(checkpoint):
    sentences = checkpoint[1]
    words = sentences[0][1][:3]
    good = [*(http_service.event({"word": word}) for word in words)]
    end = http_service.event({"count": 3}, "end")

    def check(parts, status=200, last=1.0):
        body = b"".join(f"{len(part):x}\r\n{part}\r\n".encode() for part in parts)
        request = decoder.Request(0, 0, 3)
        answer = decoder.Answer(request, 0.5, last, status, body + b"0\r\n\r\n")
        return decoder.check([answer], sentences)

    assert check([*good, end]) == 0
    for lost in (([], 503), ([*good, end], 200, np.inf), ([http_service.event({}, "error")],)):
        assert check(*lost) == 1
    assert words[0] != words[1]
    for wrong in (good, [good[1], *good[1:], end], [*good[:2], end]):
        with pytest.raises(AssertionError):
            check(wrong)


def test_words_at_a_latency_are_interpolated():
    points = [SimpleNamespace(words=w, p99=p) for w, p in ((10, 1), (20, 2), (30, 4), (31, np.inf))]
    wanted = {0.5: 0, 1: 10, 1.5: 15, 3: 25, 4: 30, 9: 30}
    assert {p99: contest.words_at(points, p99) for p99 in wanted} == wanted
    named = [SimpleNamespace(words=point.words, word99=point.p99) for point in points]
    assert {p99: contest.words_at(named, p99, "word99") for p99 in wanted} == wanted
    assert str(contest.Bar("a", 2, 1)).startswith("MISSED")
    assert str(contest.Bar("a", 2, 1, at_least=True)).startswith("holds")
    for unknown in (np.nan, np.inf):  # such as 0/0: no rate had so short times
        assert str(contest.Bar("a", unknown, 1, at_least=True)).startswith("UNKNOWN")


def test_the_model_of_a_service(monkeypatch):
    """With a round of 3, 1 for each request in it, and 10 for each that begins."""
    costs, ways = model.Costs(3.0, 1.0, 10.0), (True, False)
    one, other = decoder.Request(5.0, 0, 4), decoder.Request(16.0, 0, 1)
    assert costs.alone(4) == 10 + 4 * (3 + 1)
    assert [model.simulate(costs, [one], joins) for joins in ways] == [[costs.alone(4)]] * 2
    # The other one joins at 19, after the first round, or begins at 31, when no other is under way.
    found = [model.simulate(costs, [one, other], joins) for joins in ways]
    assert found == [[19 + 10 + 5 - 16, 34 + 2 * 4 - 5], [31 - 5, 31 + 10 + 4 - 16]]
    monkeypatch.setattr(model, "SECONDS", 2)
    monkeypatch.setattr(model, "SEEDS", 1)
    costs, told = model.Costs(1e-3, 1e-4, 0.0), []
    model.tell_limits(costs, (1.5, 3), told.append)
    assert len(told) == 2
    for text in told:
        joining, to_its_end = re.findall(r"(?:continuous|its end) ([\d,]+)", text)
        assert float(joining.replace(",", "").strip()) > float(to_its_end.replace(",", ""))
    assert model.highest_rate(costs, costs.alone(4), True) == 0, "the shortest has 5 words"


def test_throughputs_are_not_compared_if_no_rate_was_low_enough():
    slow = dict.fromkeys(decoder.Figures._fields, 1.0)
    figures = {way: [decoder.Figures(**{**slow, "p99": 9.0})] for way in contest.WAYS}
    light = dict.fromkeys(contest.WAYS, 0.05)
    shares = dict.fromkeys(contest.WAYS, 0.2)
    told = []
    bars = contest.bars(figures, light, 0.2, shares, told.append)
    assert [str(bar).split()[0] for bar in bars] == [
        *("UNKNOWN", "UNKNOWN", "holds", "UNKNOWN", "UNKNOWN", "holds")
    ]
    low, high = decoder.Figures(**{**slow, "p99": 0.1, "words": 8.0}), figures[contest.OURS][0]
    figures[contest.OURS] = [low._replace(word99=0.001), high._replace(words=9.0)]
    figures[contest.THEIRS] = [low._replace(word99=0.001, words=2.0), high]
    ratio, *_ = contest.bars(figures, light, 0.2, shares, told.append)
    assert ratio.value == pytest.approx(4, rel=0.1)
    figures[contest.THEIRS] = [high._replace(words=2.0)]  # less than that of its lowest rate
    ratio, *_ = contest.bars(figures, light, 0.2, shares, told.append)
    assert ratio.value == pytest.approx(4, rel=0.1)
