"""Load tests of the services in ``examples/``: every answer is checked, and bars are printed.

``python experiments/serve_load.py`` measures ``serve.py`` with and without batching, under clients
of which some misbehave; then ``serve_decoder.py`` with requests of mixed lengths that arrive at
random, at several rates: with requests that join and leave at every step, with minibatches that run
to their end, and one at a time; and with several processes.  ``--services model`` measures nothing:
it simulates the decoder's service with given costs.
"""

import json
import sys
import tempfile
from pathlib import Path

from command import ABOVE_ZERO, POSITIVE, SECONDS, Parser, add_options, between, listed, run_program
from serving import contest, decoder, model, pairs, pictures
from serving.client import service

SERVICES = ("pairs", "decoder", "workers", "model")
MICROSECONDS = between(float, 0, 1e9, excluded=0)


def measure_pairs(args):
    """Print the figures of pairs with and without batching; return the bars."""
    speeds = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model"
        scores = pairs.prepare(checkpoint)
        # Of 64 clients in two halves, one is answered while the other is computed.
        for size in (64, 32, 1):
            wait = ("--batch-wait-timeout-s", str(args.batch_wait_timeout_s))
            with service("serve", checkpoint, "--max-batch-size", str(size), *wait) as port:
                pairs.load(port, scores, args.warmup, args.clients, 0)
                figures = pairs.load(port, scores, args.pairs_seconds, args.clients, args.rude)
            bar = args.batch_wait_timeout_s + 3 * figures["minibatch"]
            print(f"pairs, minibatches of at most {size}; the bar for p99 is {bar:.3f} s")
            print("  " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
            speeds.append(figures["per second"])
    *batched, single = speeds
    return [contest.Bar("pairs/s, batched / one at a time", max(batched) / single, 6, True)]


def measure_decoder(args):
    """Print the figures of all ways of the decoder, draw them, and return the bars."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model"
        sentences = decoder.prepare(checkpoint)
        figures, bars = contest.measure(
            checkpoint, sentences, args.rates, args.seconds, args.rounds
        )
    args.output.mkdir(parents=True, exist_ok=True)
    content = {way: [each._asdict() for each in rows] for way, rows in figures.items()}
    (args.output / "decoder.json").write_text(json.dumps(content, indent=1) + "\n")
    for path in pictures.draw(figures, args.output):
        print(path)
    return bars


def measure_workers(args):
    """Print the most words a second with 1 and 2 processes behind one port."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model"
        sentences = decoder.prepare(checkpoint)
        for workers in (1, 2):
            with service("serve_decoder", checkpoint, "--workers", str(workers)) as port:
                decoder.load(port, 20, 3, 0, sentences)
                for rate in args.rates:
                    figures = decoder.load(port, rate, args.seconds, 1, sentences)
                    print(contest.line(f"{workers} processes", figures))
                    if not figures.p99 < contest.OVERLOADED_S:
                        break
    return []


def tell_model(args):
    """Print what a service with given costs could answer."""
    costs = model.Costs(*(each * 1e-6 for each in (args.round_us, args.request_us, args.begin_us)))
    model.tell_limits(costs, contest.TARGETS)
    return []


MEASURES = dict(zip(SERVICES, (measure_pairs, measure_decoder, measure_workers, tell_model)))


def measure(args):
    """Measure, and print the bars at the end."""
    bars = [bar for name in args.services for bar in MEASURES[name](args)]
    print(*bars, sep="\n")


def main(argv=None):
    """Measure the services."""
    parser = Parser(description=__doc__.splitlines()[0])
    add_options(
        parser,
        ("--services", listed(str, SERVICES), list(SERVICES[:3]), "NAMES", ", ".join(SERVICES)),
        ("--clients", between(int, 1, 1000), 64, "N", "pairs: clients that send valid requests"),
        ("--rude", between(int, 0, 1000), 2, "N", "pairs: clients that misbehave meanwhile"),
        ("--pairs-seconds", POSITIVE, 15, "S", "pairs: length of a measurement"),
        ("--warmup", POSITIVE, 5, "S", "pairs: length of the load before a measurement"),
        ("--batch-wait-timeout-s", SECONDS, 0.01, "S", "pairs: longest wait for a minibatch"),
        ("--rates", listed(ABOVE_ZERO), [8, 32, 64, 128, 192, 256, 320], "N,...",
         "decoder: requests per second"),
        ("--seconds", POSITIVE, 6, "S", "decoder: length of a measurement"),
        ("--rounds", POSITIVE, 20, "N", "decoder: requests that run alone first, to compare with"),
        ("--round-us", MICROSECONDS, 112, "US", "model: what a round costs, whoever takes part"),
        ("--request-us", MICROSECONDS, 12, "US", "model: and for each request in it"),
        ("--begin-us", MICROSECONDS, 354, "US", "model: and for each that begins"),
        ("--output", Path, Path("runs/serving"), "DIR", "figures and picture of the decoder"),
    )  # fmt: skip
    args = parser.parse_args(argv)
    return run_program(lambda: measure(args))


if __name__ == "__main__":
    sys.exit(main())
