"""Lazy arrays and scopes in other threads, other processes and the debugger."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, List

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon.data import ArrayDataset, DataLoader

import gluon_dynbatch as gdb
from gluon_dynbatch.record.recorder import STATE
from tests.cells import array, equal, inputs
from tests.common import FIXED, in_thread, output_of

SAMPLES = inputs(6)

DEBUGGED = """
    import bdb
    import mxnet as mx
    import gluon_dynbatch as gdb

    net = gdb.convert(mx.gluon.nn.Dense(2, in_units=3))
    net.initialize("ones")
    net.hybridize()
    one = mx.nd.ones((1, 3))

    def run():
        with gdb.batching(granularity="block", policy="depth") as batch:
            y, z = net(one), net(one * 2)
            breakpoint()
            w = net(one * 3)
        print("values", [a.asnumpy().tolist() for a in (y, z, w)])
        print("flushes", len(batch.report.flushes))

    for _ in range(3):
        run()
        print("next")
    try:
        run()
    except bdb.BdbQuit:
        print("after", net(one).asnumpy(), gdb.map(net, [one]))
"""


def test_debugger():
    """Looking at a lazy array shows its value; the program then goes on, unless it is quit."""
    commands = "".join(f"w\n{command}\nc\n" for command in ("pp y", "y.shape", "!y + 1"))
    *parts, last = output_of(DEBUGGED, given=commands + "q\n").split("next\n")
    for part, shown in zip(parts, ("[[3. 3.]]\n<LazyNDArray 1x2 @cpu(0)>", "(1, 2)", "[[4. 4.]]")):
        assert "values [[[3.0, 3.0]], [[6.0, 6.0]], [[9.0, 9.0]]]" in part and shown in part
    assert ["flushes 1" in part for part in parts] == [False, True, False]
    assert "after [[3. 3.]]" in last and "values" not in last


# Kept, copied, sent


def test_kept_across_scopes(net):
    """Results of many scopes, used together in later ones, their gradients too."""
    x = array(1, 4)
    x.attach_grad()
    found = []
    for scope in (nullcontext, lambda: gdb.batching(**FIXED)):
        kept: List[Any] = []
        with autograd.record():
            for i in range(4):
                with scope():
                    before = kept[-1] if kept else net(x)
                    kept.append(net(mx.nd.concat(before, x[:, i : i + 1], dim=1)))
            with scope():
                total = mx.nd.add_n(*kept)
        total.backward()
        found.append([total.asnumpy(), x.grad.asnumpy()])
    equal(*found, 1e-4)


def test_parameters_and_optimizer_states_saved_in_mid_scope(net, tmp_path):
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    with gdb.batching(**FIXED):
        y = net(SAMPLES[0])
        net.save_parameters(str(tmp_path / "net"))
        trainer.save_states(str(tmp_path / "trainer"))
        assert y.pending
    other = gdb.convert(mx.gluon.nn.Dense(3, in_units=4))
    other.load_parameters(str(tmp_path / "net"))
    equal([y], [other(SAMPLES[0])])


# Other threads


def test_values_asked_for_by_many_threads_are_refused_or_right(net):

    def asked() -> List[Any]:
        with ThreadPoolExecutor(len(outputs)) as pool:
            return [pool.submit(y.asnumpy) for y in outputs]

    wanted = net(SAMPLES[0]).asnumpy()
    with gdb.batching(**FIXED) as batch:
        outputs = [net(SAMPLES[0]) for _ in range(8)]
        assert all(isinstance(told.exception(), gdb.ScopeError) for told in asked())
        assert all(y.pending for y in outputs)
        batch.flush()
        equal([told.result() for told in asked()], [wanted] * 8)
    equal([told.result() for told in asked()], [wanted] * 8)


def test_pending_values_in_the_scope_of_another_thread(net):
    """As an argument there, too, a value that is pending here is refused."""

    def use() -> None:
        with gdb.batching(**FIXED):
            mx.nd.tanh(y)

    with gdb.batching(**FIXED):
        y = net(SAMPLES[0])
        with pytest.raises(gdb.ScopeError) as refused:
            in_thread(use)
    assert f"{__file__}:" in str(refused.value)
    equal([y], [net(SAMPLES[0])])


# Other processes


def test_loader_with_threads_in_an_open_scope(net):
    data = ArrayDataset(np.arange(24, dtype="float32").reshape(6, 4))
    loader = DataLoader(data, 2, num_workers=2, thread_pool=True)
    wanted = [net(x) for x in DataLoader(data, 2)]
    with gdb.batching(**FIXED) as batch:
        got = [net(x.as_in_context(mx.cpu())) for x in loader]
    assert len(batch.report.flushes) == 1
    equal(got, wanted)


def test_memory_shared_with_workers_is_a_device_of_its_own(net):
    """Hybridized Gluon refuses it as well, in words of MXNet's."""
    x = array(1, 4).as_in_context(mx.Context("cpu_shared"))
    with pytest.raises(gdb.ContextError, match="as_in_context"), gdb.batching(**FIXED):
        net(x)


LOADING = """
    import faulthandler
    import numpy as np
    import mxnet as mx
    import gluon_dynbatch as gdb
    from mxnet.gluon.data import ArrayDataset, DataLoader, SimpleDataset

    faulthandler.dump_traceback_later(90, exit=True)
    net = gdb.convert(mx.gluon.nn.Dense(3, in_units=4))
    net.initialize("ones")
    net.hybridize()
    numbers = np.arange(24, dtype="float32").reshape(6, 4)

    def load(mode, make):
        with mode, gdb.batching(granularity="block", policy="depth") as batch:
            before = [net(mx.nd.array(row[None])) for row in numbers]
            data = make(before)
            # Workers are forked here; the loader waits for all work before: none is pending.
            loaded = list(DataLoader(data, 2, num_workers=2))
            after = [net(x.as_in_context(mx.cpu())) for x in loaded]
        print([y.asnumpy()[0, 0] for y in before])
        print([y.asnumpy()[:, 0].tolist() for y in after])
        print("flushes", len(batch.report.flushes))

    for mode in mx.autograd.record(), mx.autograd.pause():
        load(mode, lambda before: ArrayDataset(numbers))
    pairs = lambda ys: SimpleDataset([mx.nd.concat(y, y[:, :1], dim=1)[0] for y in ys])
    load(mx.autograd.pause(), pairs)
"""


def test_loader_whose_workers_are_forked_in_an_open_scope():
    """With and without gradients; a worker that gets pending arrays computes them itself."""
    told = [line for line in output_of(LOADING).splitlines() if line[:1] in ("[", "f")]
    sums = np.arange(24).reshape(6, 4).sum(axis=1).astype(float)
    first = [str(sums.tolist()), str(sums.reshape(3, 2).tolist()), "flushes 2"]
    assert told[:8] == [*first, *first, first[0], str((4 * sums).reshape(3, 2).tolist())]


def test_child_that_is_forked_in_a_scope_and_goes_on(net):
    """Both processes compute the values, each for itself."""
    wanted = net(SAMPLES[0]).asnumpy()
    read, write = os.pipe()
    with gdb.batching(**FIXED):
        y = net(SAMPLES[0])
        child = os.fork()
        if not child:
            right = np.allclose(y.asnumpy(), wanted) and STATE.batch is not None
            os.write(write, b"right" if right else b"wrong")
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 5) == b"right"
    os.close(read), os.close(write)
    np.testing.assert_allclose(y.asnumpy(), wanted, 1e-5)
