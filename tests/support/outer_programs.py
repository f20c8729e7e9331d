"""Functions that read something outside their arguments, and what changes it.

Each case makes a function anew and returns it with a change: Python must give another result after.
"""

import functools
import os
import sys
import types

import numpy as np

X = np.array([1.5, -2.0, 3.0], np.float32)
GLOBAL = {"factor": 2.0}
module = types.ModuleType("settings")


class Layer:
    """An object with all kinds of attributes, which is called."""

    common = 1.0

    def __init__(self):
        self.scale = 2.0
        self.bias = np.ones(3, np.float32)
        self.parts = [{"k": 1.0}]
        self.rng = np.random.default_rng(0)

    def __call__(self, x):
        return x * self.scale + self.bias + self.parts[0]["k"] + self.common


class Stack:
    """Objects in a list."""

    def __init__(self):
        self.layers = [Layer(), Layer()]

    def run(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Slotted:
    """An object without a dict."""

    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0

    def run(self, x):
        return x * self.scale


def an_attribute():
    layer = Layer()
    return layer.__call__, lambda: setattr(layer, "scale", 7.0)


def an_array_of_an_object():
    layer = Layer()
    return layer.__call__, lambda: layer.bias.fill(7)


def a_part_of_a_part():
    layer = Layer()
    return layer, lambda: layer.parts[0].update(k=7.0)


def an_attribute_of_the_class():
    class Own(Layer):
        common = 2.0

    return Own(), lambda: setattr(Own, "common", 7.0)


def an_object_in_a_list():
    stack = Stack()
    return stack.run, lambda: setattr(stack.layers[1], "scale", 7.0)


def a_slot():
    slotted = Slotted()
    return slotted.run, lambda: setattr(slotted, "scale", 7.0)


def an_object_of_a_closure():
    stack = Stack()
    return lambda x: stack.run(x) * 2, lambda: stack.layers.pop()


def what_a_helper_reads():
    held = [2.0]

    def helper(x):
        return x * held[0]

    return lambda x: helper(x) + 1, lambda: held.append(held.pop() + 1)


def the_helper():
    def one(x):
        return x * 2

    def other(x):
        return x * 3

    helper = one

    def function(x):
        return helper(x)

    def change():
        nonlocal helper
        helper = other

    return function, change


def a_global():
    GLOBAL["factor"] = 2.0
    return lambda x: x * GLOBAL["factor"], lambda: GLOBAL.update(factor=3.0)


def a_module():
    module.SCALE = 2.0
    return lambda x: x * module.SCALE, lambda: setattr(module, "SCALE", 3.0)


def a_default():
    def function(x, by=[2.0]):  # noqa: B006
        return x * by[0]

    return function, lambda: function.__defaults__[0].append(function.__defaults__[0].pop() + 1)


def an_import():
    sys.modules["settings"] = module
    module.SCALE = 2.0

    def function(x):
        from settings import SCALE

        return x * SCALE

    return function, lambda: setattr(module, "SCALE", 3.0)


def the_environment():
    os.environ["TRIREME_TEST"] = "2"

    def function(x):
        return x * float(os.environ["TRIREME_TEST"]) + ("OTHER" in os.environ)

    return function, lambda: os.environ.update(TRIREME_TEST="3")


def the_environment_of_a_helper():
    os.environ["TRIREME_TEST"] = "2"
    read = os.getenv

    def helper():
        return float(read("TRIREME_TEST", "1"))

    return lambda x: x * helper(), lambda: os.environ.pop("TRIREME_TEST")


class Reader:
    """An object whose methods of all kinds read a global."""

    def __getitem__(self, key):
        return GLOBAL["factor"]

    @property
    def factor(self):
        return GLOBAL["factor"]

    @staticmethod
    def scaled(x):
        return x * GLOBAL["factor"]

    @classmethod
    def doubled(cls, x):
        return cls.scaled(x) * 2


def what_an_operator_reads():
    GLOBAL["factor"] = 2.0
    reader = Reader()
    return lambda x: x * reader[0], lambda: GLOBAL.update(factor=3.0)


def what_a_property_reads():
    GLOBAL["factor"] = 2.0
    reader = Reader()
    return lambda x: x * reader.factor, lambda: GLOBAL.update(factor=3.0)


def what_a_static_method_reads():
    GLOBAL["factor"] = 2.0
    return lambda x: Reader.doubled(x), lambda: GLOBAL.update(factor=3.0)


def what_a_partial_reads():
    held = [2.0]
    scaled = functools.partial(lambda by, x: x * by * held[0], 3.0)
    return lambda x: scaled(x), lambda: held.append(held.pop() + 1)


CHANGES = [
    an_attribute,
    an_array_of_an_object,
    a_part_of_a_part,
    an_attribute_of_the_class,
    an_object_in_a_list,
    a_slot,
    an_object_of_a_closure,
    what_a_helper_reads,
    the_helper,
    a_global,
    a_module,
    a_default,
    an_import,
    the_environment,
    the_environment_of_a_helper,
    what_an_operator_reads,
    what_a_property_reads,
    what_a_static_method_reads,
    what_a_partial_reads,
]
