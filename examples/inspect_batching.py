"""Inspect a scope: its report, its plan, calls that do not merge, and checks."""

import mxnet as mx
from mxnet.gluon import rnn

import arguments
import gluon_dynbatch as gdb


def main(argv=None):
    """Show the tools for inspection, one after another."""
    args = arguments.read(__doc__, argv, analysis_budget="none")
    cell = gdb.convert(rnn.LSTMCell(8, input_size=4))
    cell.initialize()
    cell.hybridize()
    sequences = [mx.nd.random.normal(shape=(length, 4)) for length in (2, 5, 3, 3)]

    def last_output(sequence):
        states = cell.begin_state(batch_size=1)
        for step in range(len(sequence)):
            output, states = cell(sequence[step : step + 1], states)
        return output

    for granularity in ("block", "operator"):
        print(f"--- report and plan, granularity {granularity}")
        with gdb.batching(args.analysis_budget, granularity, policy="depth") as batch:
            outputs = [last_output(sequence) for sequence in sequences]
        print(f"{len(outputs)} results\n{batch.report}")
        print(batch.plan)

    print("--- reading a value while calls are pending causes a flush")
    with gdb.batching(args.analysis_budget, "block", "depth") as batch:
        positive = [s for s in sequences if last_output(s).sum().asscalar() > 0]
    print(f"{len(positive)} of {len(sequences)} outputs are positive")
    print(batch.report)

    print("--- calls that no rule merges run unbatched; strict=True makes that an error")
    for strict in (False, True):
        try:
            with gdb.batching(args.analysis_budget, "block", "depth", strict=strict) as batch:
                outputs = [mx.nd.SoftmaxOutput(last_output(s), mx.nd.zeros(1)) for s in sequences]
        except gdb.NotMergedError as error:
            print(error)
        else:
            print(f"{len(outputs)} results\n{batch.report}")

    print("--- debug=True compares every result with that of the call by itself")
    gdb.map(last_output, sequences, analysis_budget=args.analysis_budget, debug=True)
    gdb.testing.check_against_loop(last_output, sequences, cell.collect_params().values())
    print("values and gradients equal those of the loop")


if __name__ == "__main__":
    main()
