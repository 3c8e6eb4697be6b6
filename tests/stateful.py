"""A network that keeps state in many places; each way to change it is a method."""

import collections
import itertools
import types

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from tests.cells import WIDTH


class Counter:
    def __init__(self):
        self.value = 0

    def __call__(self):
        self.value += 1
        return self.value


class Stack(list):
    def push(self, value):
        self.append(value)


class Table:
    def __init__(self):
        self.items = {}

    def __setitem__(self, key, value):
        self.items[key] = value

    def __iadd__(self, value):
        self.items["sum"] = self.items.get("sum", 0) + value
        return self


class Options(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Model(mx.gluon.Block):
    """Each way to change state is a method; the state decides what a sample returns."""

    shared: dict = {}

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(WIDTH, in_units=WIDTH, activation="tanh")
        self.memory, self.last, self.n = None, 0, 0
        self.cache, self.queue, self.array = {}, collections.deque([0]), np.zeros(1)
        self.space, self.counter = types.SimpleNamespace(n=0), Counter()
        self.numbers, self.weights = itertools.count(), mx.nd.ones((1, WIDTH))
        self.metric, self.default = mx.metric.Loss(), collections.defaultdict(list)
        self.rows = [[0], [0]]
        self.stack, self.options, self.tally = Stack(), Options(n=0), collections.Counter()
        self.table = Table()
        self.spaces, self.objects = [types.SimpleNamespace(n=0)], {"a": Counter()}

    def read(self, x):
        """Return an array and a number, which is read."""
        y = self.dense(x)
        return y, float(y.sum().asscalar())

    def set_first(self, x):
        self.memory = x
        for _ in range(3):
            self.memory, value = self.read(self.memory)
        return self.memory

    def set_after_a_read(self, x):
        before = self.last
        y, self.last = self.read(x)
        return self.read(y + before)[0]

    def counts(self, x):
        y, _ = self.read(x)
        self.n += 1
        return self.read(y * self.n)[0]

    def counts_sometimes(self, x):
        y, value = self.read(x)
        if value > 0:
            self.n += 1
        return self.read(y + self.n)[0]

    def starts_once(self, x):
        if self.memory is None:
            self.memory = self.read(x)[0]
        return self.read(x + self.memory)[0]

    def remembers(self, x):
        y, value = self.read(x)
        self.cache[round(value)] = y
        return self.read(y * len(self.cache))[0]

    def clears(self, x):
        self.queue.clear()
        y, value = self.read(x)
        self.queue.append(value)
        return self.read(y + len(self.queue) + self.queue[-1])[0]

    def writes_to_an_array(self, x):
        y, value = self.read(x)
        self.array[0] += value
        return self.read(y + float(self.array[0]))[0]

    def adds_to_an_array(self, x):
        y, value = self.read(x)
        self.weights[:] = self.weights + value
        return self.read(y + self.weights)[0]

    def has_a_namespace(self, x):
        y, value = self.read(x)
        self.space.n += value
        return self.read(y + self.space.n)[0]

    def calls_an_object(self, x):
        return self.read(self.read(x)[0] * self.counter())[0]

    def takes_the_next(self, x):
        return self.read(self.read(x)[0] * next(self.numbers))[0]

    def updates_a_metric(self, x):
        y, value = self.read(x)
        self.metric.update(None, [mx.nd.array([value])])
        return self.read(y + self.metric.get()[1])[0]

    def has_an_alias(self, x):
        rows = [row for row in self.rows if row]
        y, value = self.read(x)
        for row in reversed(rows):
            row.append(value)
        return self.read(y + sum(self.rows[1]))[0]

    def has_a_default(self, x):
        y, value = self.read(x)
        self.default["k"].append(value)
        return self.read(y + sum(self.default["k"]))[0]

    def deletes(self, x):
        y, value = self.read(x)
        if hasattr(self, "extra"):
            del self.extra
        else:
            self.extra = value
        return self.read(y + getattr(self, "extra", 2))[0]

    def uses_vars_of_a_child(self, x):
        y, value = self.read(x)
        self.dense.total = getattr(self.dense, "total", 0) + value
        return self.read(y + self.dense.total)[0]

    def has_a_stack(self, x):
        y, value = self.read(x)
        self.stack.push(value)
        return self.read(y + sum(self.stack))[0]

    def has_options(self, x):
        y, value = self.read(x)
        self.options.n += value
        return self.read(y + self.options.n)[0]

    def tallies(self, x):
        y, value = self.read(x)
        self.tally.update([value > 0])
        return self.read(y + self.tally[True])[0]

    def has_a_list_of_namespaces(self, x):
        y, value = self.read(x)
        for space in self.spaces:
            space.n += value
        return self.read(y + self.spaces[0].n)[0]

    def has_objects_in_a_dictionary(self, x):
        y, value = self.read(x)
        self.objects["a"].value += value
        return self.read(y + self.objects["a"].value)[0]

    def sets_an_item_of_a_slice(self, x):
        y, value = self.read(x)
        self.rows[:] = [[value], *self.rows[:1]]
        return self.read(y + self.rows[0][0] + self.rows[1][0])[0]

    def has_a_table(self, x):
        y, value = self.read(x)
        table = self.table
        table["last"] = value + table.items.get("last", 0)
        return self.read(y + self.table.items["last"])[0]

    def adds_to_a_table(self, x):
        y, value = self.read(x)
        self.table += value
        return self.read(y + self.table.items["sum"])[0]

    def swaps(self, x):
        y, value = self.read(x)
        self.last, value = value, self.last
        return self.read(y + value)[0]

    def changes_its_class(self, x):
        y, value = self.read(x)
        self.shared["n"] = self.shared.get("n", 0) + 1
        return self.read(y * self.shared["n"])[0]
