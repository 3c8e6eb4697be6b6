"""Load on ``examples/serve_decoder.py``: requests arrive at random, whatever is answered.

Arrivals are a Poisson process, an open loop (Schroeder, Wierman, Harchol-Balter, NSDI 2006):
clients do not wait for each other, so a slow service gets no fewer requests. Latencies count from
the time at which a request is due.
"""

import asyncio
import json
import random
import time
from itertools import islice
from typing import NamedTuple

import mxnet as mx
import numpy as np

import serve_decoder
from relatedness.corpora import load_corpus
from workloads.text import indices

from .client import Alarm, events_of, quiet, request_of

#: Least and largest number of words of answers that arrive at random; that of distinct sentences;
#: words of their answers that are known.
LENGTHS, SENTENCES, KNOWN = (5, 200), 16, 300
#: Least margin of scores with which rounding does not choose another word.
MARGIN = 1e-4
#: Answers of at most, and at least, so many words are "short" and "long".
SHORT, LONG = 20, 180
#: Connections that are open before the first request, as those of clients that have asked before.
OPEN = 64
#: Longest time in seconds for answers after the last request.
PATIENCE_S = 60


class Request(NamedTuple):
    """When a request is due, in seconds; its sentence; how many words it asks for."""

    due: float
    sentence: int
    words: int


class Answer(NamedTuple):
    """Seconds from when a request was due, as far as they are known, and its answer."""

    request: Request
    first: float  # infinite: never
    last: float
    status: int
    body: bytes

    @property
    def right(self):
        """Whether it has all of its words."""
        return self.status == 200 and self.last < np.inf and b"event: error" not in self.body


def prepare(path, **sizes):
    """Write a checkpoint of a random model that never ends; return sentences with their answers.

    Answers are those of the loop. One of fewer words is their beginning.
    """
    pairs = load_corpus(splits=("test",), limit=20 * SENTENCES)["test"]
    sentences = list(dict.fromkeys(pair.tokens_a for pair in pairs))
    model, vocab = serve_decoder.untrained([*sentences, (serve_decoder.END,)], **sizes)
    large = (model.embedding.weight, model.score.weight)
    for parameter in model.collect_params().values():
        # States depend on words more than on earlier states, else rounding errors would grow.
        scale = 2 if parameter in large else 0.2
        parameter.set_data(mx.nd.random.normal(0, scale, parameter.shape))
    bias = np.zeros(len(vocab), np.float32)
    bias[vocab[serve_decoder.END]] = -1e9
    model.score.bias.set_data(mx.nd.array(bias))
    serve_decoder.save(path, model, vocab)
    answers = ((" ".join(words), *_answer(model, vocab, words)) for words in sentences)
    clear = ((words, answer) for words, answer, margin in answers if margin > MARGIN)
    return list(islice(clear, SENTENCES))


def _answer(model, vocab, words):
    """Decode in the loop; return the words, and the least margin of one over the next best."""
    memory, state = model.encode(indices(vocab[list(words)]))
    number, answer, margin = len(vocab), [], np.inf
    while len(answer) < KNOWN and margin > MARGIN:
        state = model.decode(model.embedding(indices([number])), memory, *state)
        scores = model.score(state[0]).asnumpy()[0]
        number = int(scores.argmax())
        answer.append(vocab.idx_to_token[number])
        margin = min(margin, np.diff(np.sort(scores)[-2:])[0])
    return answer, margin


def arrivals(rate, seconds, seed, lengths=LENGTHS):
    """Draw requests: `rate` a second on average, of uniform lengths.

    They are due in whole milliseconds.
    """
    rng, due, requests = random.Random(seed), 0.0, []
    while True:
        due += rng.expovariate(rate)
        if due > seconds:
            return requests
        requests.append(Request(round(due, 3), rng.randrange(SENTENCES), rng.randint(*lengths)))


class Connection(asyncio.Protocol):
    """A connection that notes when the parts of an answer come, and reads them afterwards."""

    def __init__(self):
        self.transport = self.done = None
        self.parts, self.first = [], 0.0

    def connection_made(self, transport):  # noqa: D102
        self.transport = transport

    def data_received(self, data):  # noqa: D102
        if self.done.done():  # the body of an error
            return
        if not self.parts:
            self.first = time.monotonic()
        self.parts.append(data)
        # An error has a length; a stream ends with an empty chunk.
        if data.endswith(b"0\r\n\r\n") or self.parts[0][9:12] != b"200":
            self.done.set_result(time.monotonic())

    def connection_lost(self, error):  # noqa: D102
        if self.done is not None and not self.done.done():
            self.done.set_result(np.inf)

    async def ask(self, request):
        """Send a request; return the times of the first part and of the last, and all parts.

        If the service has closed the connection, there are none.
        """
        if self.transport.is_closing():
            return np.inf, np.inf, b""
        self.parts, self.done = [], asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            last = await self.done
        except asyncio.CancelledError:  # too late
            self.transport.abort()
            raise
        return self.first, last, b"".join(self.parts)


async def run(port, requests, sentences):
    """Send requests when they are due; return the answers in this order."""
    loop, bodies = asyncio.get_running_loop(), {}

    async def connect():
        return (await loop.create_connection(Connection, "127.0.0.1", port))[1]

    idle = [await connect() for _ in requests[:OPEN]]
    for _, sentence, words in requests:
        content = {"words": _of(sentences, sentence)[0], "limit": words}
        bodies[sentence, words] = request_of("/generate", json.dumps(content).encode())
    start, due = time.monotonic() + 0.05, [loop.create_future() for _ in requests]
    later = sorted(range(len(requests)), key=lambda number: -requests[number].due)

    def ring():
        """Wake the requests that are due, and come again for the next one."""
        while later and start + requests[later[-1]].due <= time.monotonic():
            due[later.pop()].set_result(None)
        if later:
            alarm.set(start + requests[later[-1]].due)

    async def ask(request, is_due):
        await is_due
        answer, body = b"", bodies[request.sentence, request.words]
        while idle and not answer:  # the service closes connections that are idle for long
            connection = idle.pop()
            first, last, answer = await connection.ask(body)
        if not answer:
            connection = await connect()
            first, last, answer = await connection.ask(body)
        if answer.startswith(b"HTTP/1.1 200") and last < np.inf:
            idle.append(connection)
        head, _, content = answer.partition(b"\r\n\r\n")
        begin = start + request.due
        return Answer(request, first - begin, last - begin, int(head[9:12] or 0), content)

    tasks = [asyncio.ensure_future(ask(*each)) for each in zip(requests, due)]
    alarm = Alarm(loop, ring)
    ring()
    _, late = await asyncio.wait(tasks, timeout=requests[-1].due + PATIENCE_S)
    alarm.close()
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
    for connection in idle:
        connection.transport.close()
    never = Answer(requests[0], np.inf, np.inf, 0, b"")
    return [
        never._replace(request=request) if task in late else task.result()
        for task, request in zip(tasks, requests)
    ]


def _of(sentences, number):
    return sentences[number % len(sentences)]


def check(answers, sentences):
    """Check all words of answers; return the number of those that are not complete."""
    for answer in answers:
        if answer.right:
            events = events_of(answer.body)
            words = [content["word"] for name, content in events if name == "message"]
            wanted = _of(sentences, answer.request.sentence)[1][: answer.request.words]
            assert words == wanted, (answer.request, words, wanted)
            assert events[-1] == ("end", {"count": len(wanted)})
    return sum(not answer.right for answer in answers)


class Figures(NamedTuple):
    """What a load has shown; times in seconds."""

    rate: float  # requests a second that were sent
    words: float  # words a second that were answered in time
    p50: float  # of a request
    p99: float
    first50: float  # until the first word
    first99: float
    each50: float  # mean time between words of an answer
    each99: float
    word99: float  # of a request, divided by its words
    short99: float  # of a short answer
    long50: float  # of a long answer
    lost: int  # requests that were refused or not answered


def ask_all(port, requests, sentences):
    """Send requests, all of which must be answered; return the answers."""
    answers = quiet(run(port, requests, sentences))
    assert not check(answers, sentences), answers
    return answers


def load(port, rate, seconds, seed, sentences):
    """Put load on a service, and check the answers."""
    requests = arrivals(rate, seconds, seed)
    answers = quiet(run(port, requests, sentences))
    lost = check(answers, sentences)
    whole = max(seconds, *(a.last + a.request.due for a in answers if a.right), 0)
    last = [answer.last for answer in answers]
    first = [answer.first if answer.right else np.inf for answer in answers]
    each = [(a.last - a.first) / (a.request.words - 1) if a.right else np.inf for a in answers]

    def percentile(values, percent):
        return float(np.percentile(values, percent, method="higher")) if values else np.nan

    return Figures(
        len(requests) / seconds,
        sum(a.request.words for a in answers if a.right) / whole,
        percentile(last, 50), percentile(last, 99),
        percentile(first, 50), percentile(first, 99),
        percentile(each, 50), percentile(each, 99),
        percentile([a.last / a.request.words for a in answers], 99),
        percentile([a.last for a in answers if a.request.words <= SHORT], 99),
        percentile([a.last for a in answers if a.request.words >= LONG], 50),
        lost,
    )  # fmt: skip
