"""The decoder's service in several ways of scheduling, side by side, and the bars for it."""

from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

import numpy as np

from . import decoder
from .client import service

#: Options of the service, by way.
WAYS = {
    "continuous": (),
    "to its end": ("--run-to-end",),
    "one at a time": ("--max-batch-size", "1"),
}
OURS, THEIRS, ALONE = WAYS
#: A way gets no higher rates once the 99th percentile of a request exceeds this, in seconds.
OVERLOADED_S = 1.5
#: A percentile of fewer requests says little, so low rates are measured for longer.
FEWEST = 100
#: The request that short ones arrive during: its words, theirs, and how many they are.
LONG, SHORT, SHORTS = 300, 5, 32
#: How many requests are alone, and long ones beside which short ones arrive, at least.
LIGHTS, LONGS = 25, 7
#: The words of requests that are alone: of one as most are, and of the longest of a load.
LIGHT, LONGEST = 50, decoder.LENGTHS[1]


class Bar(NamedTuple):
    """A required value."""

    name: str
    value: float
    bar: float
    at_least: bool = False

    def __str__(self):
        side = "at least" if self.at_least else "at most"
        if not np.isfinite(self.value):
            return f"UNKNOWN {self.name}: {side} {self.bar}; no rate was low enough to compare"
        holds = self.value >= self.bar if self.at_least else self.value <= self.bar
        return f"{'holds ' if holds else 'MISSED'} {self.name}: {self.value:.2f}, {side} {self.bar}"


def sweep(ports, sentences, rates, seconds, tell):
    """Put each load on each way in turn; return the figures by way."""
    figures = {way: [] for way in ports}
    for seed, rate in enumerate(rates):
        for way, port in ports.items():
            before = figures[way]
            if before and not before[-1].p99 < OVERLOADED_S:
                continue
            duration = max(seconds, FEWEST / rate)
            before.append(decoder.load(port, rate, duration, seed, sentences))
            tell(way, before[-1])
    return figures


def words_at(figures, p99, name="p99"):
    """Return the most words a second at which a 99th percentile is at most `p99`.

    It is that of a request; with the name of another of `decoder.Figures`, that.
    """
    best, points = 0.0, [(each.words, getattr(each, name)) for each in figures]
    for (words, low), (more, high) in zip(points, points[1:]):
        if low <= p99 < high < np.inf:
            best = max(best, words + (p99 - low) / (high - low) * max(more - words, 0))
    return max([best, *(words for words, time in points if time <= p99)])


def steps_at(figures, p99, name):
    """Return the time to the first word in words, at the highest rate with at most this p99."""
    busy = [each for each in figures if getattr(each, name) <= p99]
    busiest = max(busy, key=lambda each: each.words, default=None)
    return busiest.first50 / busiest.each50 if busiest else np.inf


def alone(ports, sentences, rounds, words):
    """Return by way the median seconds of requests of so many words, one after the other."""
    seconds = {way: [] for way in ports}
    for number in range(rounds):
        for way, port in ports.items():
            request = decoder.Request(0, number % decoder.SENTENCES, words)
            (answer,) = decoder.ask_all(port, [request], sentences)
            seconds[way].append(answer.last)
    return {way: median(each) for way, each in seconds.items()}


def beside_long(ports, sentences, rounds):
    """Return by way the 99th percentile of short requests during a long one, as its share."""
    shares = {way: [] for way in ports}
    for _ in range(rounds):
        for way, port in ports.items():
            requests = [decoder.Request(0, 0, LONG)]
            requests += [decoder.Request(0.03, i % decoder.SENTENCES, SHORT) for i in range(SHORTS)]
            long, *short = decoder.ask_all(port, requests, sentences)
            shares[way].append(np.percentile([each.last for each in short], 99) / long.last)
    return {way: median(each) for way, each in shares.items()}


def measure(checkpoint, sentences, rates, seconds, rounds, tell=print):
    """Measure all ways; return the figures of the sweep by way, and the bars."""
    with ExitStack() as stack:
        ports = {
            way: stack.enter_context(service("serve_decoder", checkpoint, *options))
            for way, options in WAYS.items()
        }
        for port in ports.values():  # compiles, and fills caches
            decoder.load(port, 10, 3, 0, sentences)
        light = alone(ports, sentences, max(LIGHTS, rounds), LIGHT)
        longest = alone({OURS: ports[OURS]}, sentences, max(LIGHTS, rounds), LONGEST)[OURS]
        two = {way: ports[way] for way in (OURS, THEIRS)}
        shares = beside_long(two, sentences, max(LONGS, rounds // 4))
        figures = sweep(ports, sentences, rates, seconds, lambda *each: tell(line(*each)))
    for way in ports:
        tell(f"{way}: {light[way] / LIGHT * 1e3:.2f} ms a word if nobody else asks")
    tell(f"{THEIRS}: {SHORTS} requests of {SHORT} words that arrive 30 ms after one of {LONG} need "
         f"{shares[THEIRS]:.2f} of its time (p99)")  # fmt: skip
    tell(f"{OURS}: {longest:.3f} s for {LONGEST} words if nobody else asks")
    return figures, bars(figures, light, longest, shares, tell)


def line(way, each):
    """Describe the figures of a load."""
    return (
        f"{way:14}{each.rate:6.1f} requests/s, {each.words:7,.0f} words/s; request {each.p50:6.3f} "
        f"{each.p99:6.3f} s, first word {each.first50 * 1e3:6.1f} {each.first99 * 1e3:6.1f} ms, "
        f"each {each.each50 * 1e3:5.2f} {each.each99 * 1e3:5.2f} ms (p50, p99); {each.lost} lost"
    )


#: The 99th percentiles at which rates are compared, as multiples: of the time of a load's longest
#: request, if it is alone; and of the time of a word, if a request is alone. The bars are for the
#: second of each.
TARGETS, WORD_TARGETS = (1.5, 2, 3, 5, 10), (5, 10, 20)


def bars(figures, light, longest, shares, tell):
    """Return the bars.

    Throughput is what a way can answer while the 99th percentile of the time of a request, from
    when it is due, does not exceed a limit. The limit is relative: how many times as long as alone
    may a service let the longest request take? Beyond saturation, times depend on how long the
    load lasts, and throughput no longer on who waits for whom. Most of such a time is that of the
    longest requests, so it says little of those that wait for them. (`longest` is the time of one
    that is alone.) Orca and vLLM therefore divide
    the time of a request by its number of words; so does the second comparison.
    """
    word = light[OURS] / LIGHT

    def ratio_at(name, p99, what):
        words = [words_at(figures[way], p99, name) for way in WAYS]
        listed = ", ".join(f"{way} {each:,.0f}" for way, each in zip(WAYS, words))
        tell(f"words/s with a p99 of {what}: {listed}")
        # If the other way misses the limit at its lowest rate, it can answer less than that.
        return words[0] / (words[1] or figures[THEIRS][0].words) if words[0] else np.nan

    ratios = [
        ratio_at("p99", each * longest, f"{each * longest:.3f} s ({each} times the longest)")
        for each in TARGETS
    ]
    word_ratios = [
        ratio_at("word99", each * word, f"{each * word * 1e3:.2f} ms a word ({each} times alone)")
        for each in WORD_TARGETS
    ]
    most = [max(each.words for each in figures[way]) for way in WAYS]
    tell(f"words/s at most: {', '.join(f'{w} {m:,.0f}' for w, m in zip(WAYS, most))}")
    # If hardly anybody asks, a step takes less time than to receive the request.
    steps = [
        steps_at(figures[OURS], p99, name)
        for p99, name in ((2 * longest, "p99"), (10 * word, "word99"))
    ]
    return [
        Bar(f"words/s, {OURS} / {THEIRS}, p99 of 2 times the longest", ratios[1], 2, True),
        Bar(f"words/s, {OURS} / {THEIRS}, p99 of 10 times a word alone", word_ratios[1], 2, True),
        Bar(f"p99 of short requests / duration of a long one ({LONG} words)", shares[OURS], 0.3),
        Bar("steps until the first word, p50, at p99 of 2 times the longest", steps[0], 3),
        Bar("steps until the first word, p50, at p99 of 10 times a word alone", steps[1], 3),
        Bar(f"time of one request alone, {OURS} / {THEIRS}", light[OURS] / light[THEIRS], 1.05),
    ]
