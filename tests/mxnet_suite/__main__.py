"""``make mxnet-tests MXNET=<checkout>``: MXNet's own unit tests, run plain and inside scopes.

A test that passes plain must pass in a scope, or be refused for a documented reason
(`refusals.py`).  Prints a table, and each test that does neither.  Tests run in other processes:
they may crash or hang.
"""

import argparse
import json
import re
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .pool import Worker
from .refusals import documented

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
import command  # noqa: E402

#: Modules of the checkout's tests/python/unittest that are run unless others are named.
MODULES = [
    "test_autograd", "test_loss", "test_gluon", "test_gluon_rnn", "test_gluon_contrib",
    "test_contrib_control_flow", "test_ndarray", "test_exc_handling", "test_thread_local",
    "test_gluon_trainer", "test_contrib_operator",
]  # fmt: skip
WAYS = ["scope", "debug", "lazy", "converted"]
ENDINGS = ["passes", "refused", "fails", "crashes", "hangs"]


def run_module(options, module, way, names=None):
    """Run tests of a module in one way; return how each ended, by name."""
    with Worker(options.checkout, module, way, options.seed, options.gigabytes) as worker:
        if names is None:
            worker.start()
            names = [name for name in worker.tests if re.search(options.tests, name)]
        results = {}
        for name in names:
            results[name] = worker.run(name, options.seconds)
            if options.verbose:
                print(f"{module} {way} {name}: {results[name]['result']}", flush=True)
    return results


def judge(module, test, result):
    """Return how a test in a scope ended, one of `ENDINGS`."""
    ending = result["result"].split()[0]
    if ending == "fails" and documented(f"{module}.{test}", result):
        return "refused"
    return ending


def run_all(options, module):
    """Run a module plain, and in each way the tests that pass plain."""
    plain = run_module(options, module, "plain")
    passing = [name for name, result in plain.items() if result["result"] == "passes"]
    scopes = {way: run_module(options, module, way, passing) for way in options.ways}
    return {"plain": plain, **scopes}


COLUMNS = ["passes", "refused", "else", "calls"]


def counts_of(results):
    """Yield a row of numbers for each module and way, and the sum of the modules for each way."""
    totals = {}
    for module, by_way in results.items():
        for way, tests in by_way.items():
            row = Counter(judge(module, *item) for item in tests.items())
            row["else"] = sum(row[ending] for ending in ("fails", "crashes", "hangs"))
            row["calls"] = sum(result.get("calls", 0) for result in tests.values())
            totals.setdefault(way, Counter()).update(row)
            yield module, way, row
    for way, row in totals.items():
        yield "total", way, row


def show_table(results):
    """Print how many tests ended how, and how many calls were recorded, per module and way."""
    print(f"\n{'module':28}{'way':12}" + "".join(f"{column:>9}" for column in COLUMNS))
    last = None
    for module, way, row in counts_of(results):
        name, last = "" if module == last else module, module
        print(f"{name:28}{way:12}" + "".join(f"{row[column]:9}" for column in COLUMNS))


def failures(results):
    """Yield each test that passes plain, and in a scope neither passes nor is refused."""
    for module, by_way in results.items():
        for way, tests in by_way.items():
            for test, result in tests.items():
                if way != "plain" and judge(module, test, result) not in ("passes", "refused"):
                    yield module, way, test, result


def pattern(text):
    """Check a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no pattern: {error}") from None
    return text


def main():
    parser = command.Parser(description=__doc__, prog="python -m tests.mxnet_suite")
    parser.add_argument("checkout", type=Path, help="folder of MXNet 1.9.1's source")
    parser.add_argument("--modules", default=",".join(MODULES), help="such as test_loss,test_gluon")
    parser.add_argument("--ways", type=command.listed(str, WAYS), default=WAYS)
    parser.add_argument("--tests", type=pattern, default="", help="only tests with such a name")
    parser.add_argument("--seed", type=command.SEED, default=1)
    above_zero, count = command.ABOVE_ZERO, command.POSITIVE
    parser.add_argument("--seconds", type=above_zero, default=120, help="after which a test hangs")
    parser.add_argument("--gigabytes", type=above_zero, default=16, help="of memory per process")
    parser.add_argument("--processes", type=count, default=1)
    parser.add_argument("--output", type=Path, help="JSON file of all results, with tracebacks")
    parser.add_argument("--verbose", action="store_true", help="a line for each test")
    options = parser.parse_args()
    options.checkout, modules = options.checkout.resolve(), options.modules.split(",")
    for module in modules:
        path = options.checkout / "tests" / "python" / "unittest" / f"{module}.py"
        if not path.is_file():
            parser.error(f"{options.checkout}: no source of MXNet 1.9.1 with {module}.py")
    with ThreadPoolExecutor(options.processes) as pool:
        runs = [pool.submit(run_all, options, module) for module in modules]
        results = {module: run.result() for module, run in zip(modules, runs)}
    if options.output:
        options.output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    count = 0
    for module, way, test, result in failures(results):
        count += 1
        kind = f"{result['kind']}: " if "kind" in result else ""
        print(f"\n{module}.{test}, {way}: {result['result']}\n  {kind}{result['message']}")
    show_table(results)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
