"""The services on a cluster: Ray Serve runs the decoder, Ray Data scores files of pairs.

    python examples/serve_ray.py serve --replicas 2
    python examples/serve_ray.py score pairs.jsonl scores --checkpoint runs/relatedness/best

The first answers as ``examples/serve_decoder.py`` does, with more replicas if more requests are
under way. The second takes lines of JSON in the format of ``examples/serve.py``, and writes them
with their scores to a folder. Both begin a cluster on this machine, or join the one that
``--address`` names; there, this clone, the checkpoint and the files are on storage that all
machines see, at one path.
"""

import argparse
import math
import signal
import sys
import threading
from pathlib import Path

import numpy as np

try:
    import ray
    import ray.data
    from ray import serve as ray_serve
except ImportError as error:
    print(f"error: {error}; in the clone, pip install '.[ray]' installs Ray", file=sys.stderr)
    sys.exit(2)

import gluon_dynbatch as gdb

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import service_processes  # noqa: E402
from command import POSITIVE, Parser, add_options, between, run_program  # noqa: E402
from cores import imports  # noqa: E402
from relatedness.corpora import request_reader  # noqa: E402
from serve import ScoreService  # noqa: E402
from serve_decoder import DecoderService  # noqa: E402
from workloads.text import encode  # noqa: E402


def begin(address=None, **options):
    """Begin or join a cluster, whose processes import what this one would."""
    ray.init(address, runtime_env={"env_vars": imports()}, **options)


def application(replicas, arguments=()):
    """Return the decoder as an application of Ray Serve, of at most so many replicas."""
    args = service_processes.parse(DecoderService, arguments)

    def build():  # in the process of a replica
        return DecoderService(args, DecoderService.load(args))

    deployment = ray_serve.deployment(
        ray_serve.ingress(build)(),
        name="decoder",
        # Requests that wait in the replica join those that are under way at the next step.
        max_ongoing_requests=2 * args.max_batch_size,
        max_queued_requests=args.max_queue,
        ray_actor_options={"num_cpus": 1},
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": replicas,
            "target_ongoing_requests": args.max_batch_size,
        },
    )
    return deployment.bind()


class Scorer:
    """Scores batches of lines, in a worker of Ray Data."""

    def __init__(self, checkpoint):
        args = argparse.Namespace(checkpoint=checkpoint)
        self.model, self.vocab = ScoreService.load(args)
        self.model.hybridize(trace_once=True)

    def __call__(self, batch):
        """Add the scores of lines."""
        lines = batch["text"].tolist()
        read = request_reader("a line", lines)
        samples = encode([read(number) for number in range(len(lines))], self.vocab)
        outputs = gdb.imap(self.model, [sample.inputs for sample in samples], batch_size=256)
        scores = [sum(i * math.exp(p) for i, p in enumerate(y.asnumpy()[0], 1)) for y in outputs]
        return {**batch, "score": np.array(scores, np.float32)}


def scored(pairs, checkpoint, workers):
    """Return the lines of a file or of a folder of files, with scores, as a data set of Ray."""
    return ray.data.read_text(str(pairs)).map_batches(
        Scorer,
        fn_constructor_args=(checkpoint and str(checkpoint),),
        batch_size=4096,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
    )


def serve(args):
    """Serve until interrupted; then answer what is under way."""
    ray_serve.start(http_options={"host": args.host, "port": args.port})
    options = ("--checkpoint", str(args.checkpoint)) if args.checkpoint else ()
    ray_serve.run(application(args.replicas, options), route_prefix="/")
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    ray_serve.shutdown()


def score(args):
    """Score a file of pairs."""
    scored(args.pairs, args.checkpoint, args.workers).write_json(str(args.output))


def main(argv=None):
    """Run the program."""
    parser = Parser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    address = ("--address", str, None, "HOST", "a cluster to join (default: begin one)")
    checkpoint = ("--checkpoint", Path, None, "FILE", "model (default: train one)")
    served = commands.add_parser("serve", help="serve the decoder")
    add_options(
        served, address, checkpoint,
        ("--host", str, "127.0.0.1", None, "address to listen at"),
        ("--port", between(int, 0, 65535), 8000, "N", "port to listen at"),
        ("--replicas", POSITIVE, 2, "N", "largest number of replicas, one core each"),
    )  # fmt: skip
    file = commands.add_parser("score", help="score a file of pairs")
    file.add_argument("pairs", type=Path, help="a file, or a folder of files")
    file.add_argument("output", type=Path, help="folder for the scores")
    add_options(
        file, address, checkpoint,
        ("--workers", POSITIVE, 2, "N", "number of workers, one core each"),
    )  # fmt: skip
    args = parser.parse_args(argv)

    def run():
        begin(args.address)
        {"serve": serve, "score": score}[args.command](args)

    return run_program(run)


if __name__ == "__main__":
    sys.exit(main())
