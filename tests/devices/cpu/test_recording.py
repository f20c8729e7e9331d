"""Arithmetic that is recorded while it runs gives the same numbers, or says that it cannot."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from resized import resizable

from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.recording import NotRecorded, SizeRecording
from trireme.devices.cpu.kernels.opaque import opaque
from trireme.devices.cpu.kernels.sample import deal_evenly
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

ISA = available_isas(variants=False)[0]


def recorded(function, *numbers):
    """The code of a function at some numbers."""
    recording = SizeRecording()
    return recording.finish(function(*(recording.number(k, n) for k, n in enumerate(numbers))))


def mixed(a, b):
    total = math.prod([3, a, b]) + sum([a, 5, b])
    tiles = -(-total // 16)
    seconds = tiles * 1e-9 + a / 7 - 0.5 * 3
    part = max(2, round(seconds * 40)) if tiles > 20 else min(a, b)
    return (total, tiles % 7, abs(a - b), math.ceil(a / 3), part), seconds, (+a, True, None is a)


def test_recorded_code_gives_the_numbers_or_none():
    print("seed 9")
    draw = random.Random(9)
    code, served = recorded(mixed, 12, 30), 0
    for _ in range(300):
        numbers = draw.randint(1, 60), draw.randint(1, 60)
        found = code(numbers)
        if found is not None:
            served += 1
            assert found == mixed(*numbers)
            assert [type(n) for n in found[0]] == [int] * 5
    assert served > 20
    assert code((1, 1)) is None  # other branches


def recorded_of_many(function, *numbers):
    """The code of a function for many numbers at once."""
    recording = SizeRecording()
    made = function(*(recording.number(k, n) for k, n in enumerate(numbers)))
    return recording.finish_of_many(made)


def dealt(a, b):
    return (*deal_evenly(a, a * 3e-8), *opaque(lambda n, m: (n % m, n // m), a, b), -(-a // 3))


@pytest.mark.parametrize("function", [mixed, dealt])
@pytest.mark.parametrize("start", [(12, 30), (1, 5), (700, 6), (40_000, 7)])
def test_code_of_many_gives_the_numbers_of_one(function, start):
    one, many = recorded(function, *start), recorded_of_many(function, *start)
    first = np.arange(1, 60_000, 7)
    with np.errstate(all="ignore"):  # where the numbers go another way
        on, made = many((first, start[1]))
    on = np.broadcast_to(on, first.shape)
    for k in range(0, len(first), 11):
        found = one((int(first[k]), start[1]))
        assert (found is not None) == on[k]
        if found is not None:
            assert found == at(made, k)


def at(made, k):
    """One of many results."""
    if isinstance(made, tuple):
        return tuple(at(part, k) for part in made)
    return made[k] if isinstance(made, np.ndarray) else made


@pytest.mark.parametrize("total", [1, 7, 40, 1000, 12345])
def test_chunks_are_dealt_as_python_deals(total):
    code = recorded(lambda n: deal_evenly(n, n * 3e-8), total)
    served = 0
    for n in [*range(1, 200), *range(10_000, 10_200), total]:
        found = code((n,))
        served += found is not None
        assert found in (None, deal_evenly(n, n * 3e-8))
    assert served


@pytest.mark.parametrize(
    "leak",
    [
        hash,
        int,
        float,
        str,
        "{}".format,
        repr,
        lambda n: {n: 1},
        lambda n: math.sqrt(n),
        lambda n: n << 1,
        lambda n: n**2,
        lambda n: divmod(n, 3),
        lambda n: round(n / 3, 1),
        lambda n: [n],
        range,
        lambda n: bytes(n),
    ],
)
def test_a_number_that_leaves_ends_the_recording(leak):
    with pytest.raises(NotRecorded):
        recorded(lambda n: (leak(n),), 12)


def test_a_long_recording_ends():
    def long(n):
        for k in range(1000):
            n = n * 3 + k
        return n

    with pytest.raises(NotRecorded):
        recorded(long, 2)


def test_a_search_is_called():
    calls = []

    def search(a, b):
        calls.append((a, b))
        return (max(range(1, a), key=lambda k: k % b), b)

    code = recorded(lambda a, b: (opaque(search, a + 1, b), a), 20, 7)
    for a, b in ((20, 7), (31, 5), (8, 2)):
        assert code((a, b)) == (search(a + 1, b), a)
    assert opaque(search, 21, 7) == search(21, 7)
    assert {type(n) for pair in calls for n in pair} == {int}


def chain():
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(("b", "s", 37), "float32"))
    return b.finish(b.add("mul", b.add("tanh", x), x))


def test_python_sizes_no_step_that_was_recorded(cpus):
    _, call, _ = resizable(cpus[ISA, 1], chain())
    sizer = call.resizer
    for s in (2, 64):  # of one chunk, and of several
        sizer.at((2, s))
    before = sizer.resized
    made = [sizer.at((2, s)) for s in range(2, 72)]
    assert sizer.resized == before
    fresh = resizable(cpus[ISA, 1], chain())[1]
    fresh.resizer.recordings = 0
    for s, one in enumerate(made, 2):
        plain = fresh.resizer.at((2, s))
        assert one.rows == plain.rows


@pytest.mark.parametrize("leak", [lambda n: int(2.0 * n), lambda n: len(range(n))])
def test_a_step_whose_numbers_leave_is_sized_by_python(cpus, leak):
    _, call, _ = resizable(cpus[ISA, 1], chain())
    (group,) = call.resizer._groups
    size = group.step.size

    def leaking(graph):
        made = size(graph)
        return replace(made, words=(*made.words[:-1], leak(made.words[0])))

    group.step = replace(group.step, size=leaking)
    for s in range(2, 30):
        ((words, *_),) = call.resizer.at((2, s)).rows
        assert words == leaking(call.resizer._graph).words
    assert not group.codes


def test_a_float_times_a_number_is_recorded():
    code = recorded(lambda n: (2.0 * n, 1e-3 * n / 7), 12)
    assert code((40,)) == (80.0, 1e-3 * 40 / 7)
